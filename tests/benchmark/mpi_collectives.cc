// The same rows through MPI: mpirun -np 2 mpi_collectives.openmpi --op allreduce --json FILE.
#include <mpi.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "tests/benchmark/collective_rows.h"

namespace {

MPI_Datatype datatype_of(const std::string& dtype) {
  if (dtype == "float32") return MPI_FLOAT;
  if (dtype == "float64") return MPI_DOUBLE;
  if (dtype == "int32") return MPI_INT32_T;
  if (dtype == "int64") return MPI_INT64_T;
  if (dtype == "int8") return MPI_INT8_T;
  if (dtype == "uint8") return MPI_UINT8_T;
  throw std::runtime_error("--dtype " + dtype + ": MPI has no sum of it");
}

class Mpi final : public hvd::Library {
 public:
  explicit Mpi(const hvd::RowsRequest& request)
      : kind_(request.kind),
        type_(datatype_of(request.dtype)),
        element_bytes_(request.element_bytes) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::byte* memory(size_t bytes) override {
    memory_ = hvd::PrivateMemory(bytes);
    return memory_.data();
  }

  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

  const std::byte* run(std::byte* data, size_t bytes) override {
    const int count = static_cast<int>(bytes / element_bytes_);
    switch (kind_) {
      case hvd::CollectiveKind::kAllreduce:
        MPI_Allreduce(MPI_IN_PLACE, data, count, type_, MPI_SUM, MPI_COMM_WORLD);
        break;
      case hvd::CollectiveKind::kBroadcast:
        MPI_Bcast(data, count, type_, 0, MPI_COMM_WORLD);
        break;
      case hvd::CollectiveKind::kAllgather:
        MPI_Allgather(MPI_IN_PLACE, 0, type_, data, count / size_, type_, MPI_COMM_WORLD);
        break;
    }
    return data;
  }

  void maximum(std::span<double> values) override {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
  }

 private:
  const hvd::CollectiveKind kind_;
  const MPI_Datatype type_;
  const size_t element_bytes_;
  int rank_ = 0, size_ = 1;
  hvd::PrivateMemory memory_;
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int status = 0;
  try {
    hvd::RowsRequest request;
    const char* const memories[] = {"private"};
    if (hvd::parse_rows_request({argv, static_cast<size_t>(argc)}, memories, request)) {
      Mpi mpi(request);
      status = hvd::measure_rows(mpi, request) ? 1 : 0;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mpi_collectives: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  MPI_Finalize();
  return status;
}
