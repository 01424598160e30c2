// Trains Horovod's MNIST network on handwritten digits, one part of the data per rank.
//
//   hvdrun -np 2 mnist --epochs 60
#include <hvd/hvd.h>
#include <hvd/torch.h>
#include <torch/data/samplers/distributed.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "examples/digits.h"
#include "examples/error_line.h"
#include "examples/mnist_lines.h"
#include "examples/mnist_net.h"
#include "examples/training_flags.h"

namespace {

struct Options {
  int64_t batch_size = 64;
  int64_t test_batch_size = 1000;
  int epochs = 10;
  double lr = 0.01;
  double momentum = 0.5;
  int64_t seed = 42;
  int log_interval = 10;
  bool fp16_allreduce = false;
  bool no_cuda = false;
  double gradient_predivide_factor = 1.0;
  std::string data_dir = default_digits_directory();
  std::string checkpoint = "mnist-checkpoint.pt";
  bool resume = false;
};

// CLI's own ranges let nan pass.
std::string is_number(const std::string& text) {
  double value = 0;
  if (CLI::detail::lexical_cast(text, value) && value >= 0 && std::isfinite(value)) return "";
  return text + " is no number from 0 up";
}

std::string is_positive(const std::string& text) {
  double value = 0;
  if (is_number(text).empty() && CLI::detail::lexical_cast(text, value) && value > 0) return "";
  return text + " is no number above 0";
}

// What has more digits would be taken for the largest there is.
std::string is_whole(const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end) return "";
  return text + " is no whole number of 64 bits";
}

std::string is_name(const std::string& text) { return text.empty() ? "the name is empty" : ""; }

// Horovod's flags, and where data and checkpoints lie.
Options parse(int argc, char** argv) {
  Options o;
  CLI::App app{"Trains a digit classifier, data-parallel", "mnist"};
  app.option_defaults()->always_capture_default();
  app.add_option("--batch-size", o.batch_size, "samples per rank and step")
      ->check(CLI::Range(1, INT_MAX));
  app.add_option("--test-batch-size", o.test_batch_size)->check(CLI::Range(1, INT_MAX));
  app.add_option("--epochs", o.epochs)->check(CLI::Range(1, INT_MAX));
  app.add_option("--lr", o.lr, "learning rate, multiplied by the number of ranks")
      ->check(is_number);
  app.add_option("--momentum", o.momentum)->check(is_number);
  app.add_option("--seed", o.seed, "any whole number; PyTorch takes negative ones, too")
      ->check(is_whole);
  app.add_option("--log-interval", o.log_interval, "batches between two lines")
      ->check(CLI::Range(1, INT_MAX));
  app.add_option("--gradient-predivide-factor", o.gradient_predivide_factor)->check(is_positive);
  app.add_option("--data-dir", o.data_dir, "folder with MNIST's four IDX files, also .gz");
  app.add_option("--checkpoint", o.checkpoint, "written by rank 0 after each epoch")
      ->check(is_name);
  app.add_flag("--resume", o.resume, "go on after the checkpoint's epoch");
  parse_training_flags(app, argc, argv, o.fp16_allreduce, o.no_cuda);
  return o;
}

class Training {
 public:
  explicit Training(const Options& options)
      : o_(options),
        device_(o_.no_cuda ? torch::Device(torch::kCPU) : hvd::local_device()),
        training_(digits(Part::kTraining)),
        test_(digits(Part::kTest)),
        sampler_(static_cast<size_t>(training_.images.size(0)), static_cast<size_t>(hvd::size()),
                 static_cast<size_t>(hvd::rank())),
        samples_((training_.images.size(0) + hvd::size() - 1) / hvd::size()),
        sgd_(model_->parameters(),
             torch::optim::SGDOptions(o_.lr * hvd::size()).momentum(o_.momentum)) {
    model_->to(device_);
    if (hvd::rank() == 0) check_checkpoint();
    if (o_.resume && hvd::rank() == 0) load();
    first_epoch_ =
        hvd::broadcast(torch::tensor(first_epoch_), 0, {.name = "first_epoch"}).item<int>();
    hvd::broadcast_parameters(*model_, 0);
    hvd::broadcast_optimizer_state(sgd_, 0);
    optimizer_ = std::make_unique<hvd::DistributedOptimizer>(
        sgd_, model_->named_parameters(),
        hvd::DistributedOptimizerOptions{
            .compression = o_.fp16_allreduce ? hvd::Compression::kFp16 : hvd::Compression::kNone,
            .gradient_predivide_factor = o_.gradient_predivide_factor});
  }

  void run() {
    if (first_epoch_ > o_.epochs && hvd::rank() == 0)
      std::fprintf(stderr, "mnist: nothing is left to train: %s holds epoch %d, --epochs is %d\n",
                   o_.checkpoint.c_str(), first_epoch_ - 1, o_.epochs);
    for (int epoch = first_epoch_; epoch <= o_.epochs; ++epoch) {
      train(epoch);
      test();
      if (hvd::rank() == 0) save(epoch);
    }
  }

 private:
  Digits digits(Part part) const {
    const Digits loaded = load_digits(o_.data_dir, part);
    return {loaded.images.to(device_), loaded.targets.to(device_)};
  }

  void train(int epoch) {
    model_->train();
    sampler_.set_epoch(static_cast<size_t>(epoch));
    sampler_.reset();
    // Anew in each epoch, so that a resumed run draws what the uninterrupted one drew.
    torch::manual_seed(static_cast<uint64_t>(o_.seed) +
                       static_cast<uint64_t>(epoch * hvd::size() + hvd::rank()));
    const int64_t batches = (samples_ + o_.batch_size - 1) / o_.batch_size;
    for (int64_t batch = 0; batch < batches; ++batch) {
      const auto drawn = sampler_.next(static_cast<size_t>(o_.batch_size));
      // So that each rank has as many, the sampler goes on with the first image after the last, but
      // only once: with many ranks it comes to numbers beyond them.
      const torch::Tensor index = torch::tensor(std::vector<int64_t>(drawn->begin(), drawn->end()))
                                      .remainder(training_.images.size(0))
                                      .to(device_);
      optimizer_->zero_grad();
      const torch::Tensor loss = torch::nll_loss(model_(training_.images.index_select(0, index)),
                                                 training_.targets.index_select(0, index));
      loss.backward();
      optimizer_->step();
      if (batch % o_.log_interval == 0) {
        const double percent = 100.0 * static_cast<double>(batch) / static_cast<double>(batches);
        print(train_line(epoch, batch * index.size(0), samples_, percent, loss.item<double>()));
      }
    }
  }

  // Every test image is seen by exactly one rank: the sums are those of all of them.
  void test() {
    torch::NoGradGuard no_grad;
    model_->eval();
    const int64_t count = test_.images.size(0);
    // Of more ranks than images some have none.
    const torch::Tensor mine =
        torch::arange(std::min<int64_t>(hvd::rank(), count), count, hvd::size()).to(device_);
    // Loss, correct, images.
    torch::Tensor sums = torch::zeros({3}, torch::dtype(torch::kDouble).device(device_));
    for (const torch::Tensor& index : mine.split(o_.test_batch_size)) {
      if (index.numel() == 0) continue;
      const torch::Tensor output = model_(test_.images.index_select(0, index));
      const torch::Tensor target = test_.targets.index_select(0, index);
      sums[0] += torch::nll_loss(output, target, {}, at::Reduction::Sum).to(torch::kDouble);
      sums[1] += output.argmax(1).eq(target).sum().to(torch::kDouble);
      sums[2] += index.numel();
    }
    sums = hvd::allreduce(sums, {.name = "test_sums", .op = hvd::ReduceOp::kSum});
    const double images = sums[2].item<double>();
    if (hvd::rank() == 0)
      print(test_line(sums[0].item<double>() / images, sums[1].item<double>() / images));
  }

  // Before any training, not after an epoch of it.
  void check_checkpoint() const {
    check_replaceable();
    if (!std::ofstream(unfinished_, std::ios::app))
      throw std::runtime_error(unfinished_ + ": cannot be written: " + std::strerror(errno) +
                               "; give --checkpoint a file that can");
    std::filesystem::remove(unfinished_);
  }

  // A device, say, would be gone after rename().
  void check_replaceable() const {
    const auto there = std::filesystem::status(o_.checkpoint);
    if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there))
      throw std::runtime_error(o_.checkpoint +
                               ": is no regular file; give --checkpoint another name");
  }

  // Whole or not at all: a run that is interrupted here leaves the previous checkpoint.
  void save(int epoch) {
    check_replaceable();
    torch::serialize::OutputArchive archive, model, optimizer;
    model_->save(model);
    sgd_.save(optimizer);
    archive.write("epoch", torch::tensor(epoch));
    archive.write("model", model);
    archive.write("optimizer", optimizer);
    std::ostringstream bytes;  // written to a file, a full disk would end the program in there
    archive.save_to(bytes);
    std::ofstream file(unfinished_, std::ios::binary);
    file << bytes.view();
    file.close();  // some file systems say only then that there is no room
    if (!file) {
      const std::string why = std::strerror(errno);
      std::filesystem::remove(unfinished_);
      throw std::runtime_error(unfinished_ + ": cannot be written: " + why);
    }
    std::filesystem::rename(unfinished_, o_.checkpoint);
  }

  void load() {
    if (!std::filesystem::exists(o_.checkpoint))
      throw std::runtime_error(o_.checkpoint + ": no such checkpoint; run without --resume first");
    try {
      torch::serialize::InputArchive archive, model, optimizer;
      archive.load_from(o_.checkpoint, device_);
      torch::Tensor epoch;
      archive.read("epoch", epoch);
      archive.read("model", model);
      archive.read("optimizer", optimizer);
      load_parameters(model);
      sgd_.load(optimizer);
      use_flags();
      if (epoch.item<int64_t>() < 0 || epoch.item<int64_t>() >= INT_MAX)
        throw std::runtime_error("it holds epoch " + std::to_string(epoch.item<int64_t>()));
      first_epoch_ = epoch.item<int>() + 1;
    } catch (const std::exception& error) {
      throw std::runtime_error(o_.checkpoint + ": is no whole checkpoint: " + error_line(error));
    }
  }

  // LibTorch takes in whatever has the names.
  void load_parameters(torch::serialize::InputArchive& archive) {
    std::vector<std::vector<int64_t>> sizes;
    for (const torch::Tensor& one : model_->parameters()) sizes.push_back(one.sizes().vec());
    model_->load(archive);
    const auto loaded = model_->named_parameters();
    for (size_t i = 0; i < sizes.size(); ++i)
      if (loaded[i].value().sizes() != sizes[i])
        throw std::runtime_error("its " + loaded[i].key() + " is another net's");
  }

  // A checkpoint brings the learning rate of its run; the flags and the number of ranks are this
  // one's.
  void use_flags() {
    for (auto& group : sgd_.param_groups()) {
      auto& options = static_cast<torch::optim::SGDOptions&>(group.options());
      options.lr(o_.lr * hvd::size()).momentum(o_.momentum);
    }
  }

  static void print(const std::string& line) {
    std::puts(line.c_str());
    std::fflush(stdout);
  }

  const Options o_;
  const std::string unfinished_ = o_.checkpoint + ".unfinished";
  const torch::Device device_;
  const Digits training_, test_;
  torch::data::samplers::DistributedRandomSampler sampler_;
  const int64_t samples_;  // of this rank in an epoch
  MnistNet model_;
  torch::optim::SGD sgd_;
  std::unique_ptr<hvd::DistributedOptimizer> optimizer_;
  int first_epoch_ = 1;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    hvd::init();
    torch::manual_seed(static_cast<uint64_t>(options.seed));
    Training(options).run();
    hvd::shutdown();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mnist: %s\n", error_line(error).c_str());
    return 1;
  }
}
