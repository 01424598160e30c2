// Parameters that a DistributedOptimizer gets later, or twice.
#include <ATen/ops/allclose.h>
#include <ATen/ops/ones.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "tests/runtime/torch/training.h"

namespace hvd {

TEST_CASE(
    "optimizer groups: parameters that were frozen in the beginning join when they are thawed") {
  check_as_ranks([](const ThreadRank& rank) {
    const auto frozen = [] {
      auto net = nets::mlp()();
      net->named_parameters()["a.weight"].requires_grad_(false);
      return net;
    };
    Training t(rank, frozen, nets::sgd());
    Alone alone(frozen);
    for (int step = 0; step < 10; ++step) {
      if (step == 5) {
        t.net->named_parameters()["a.weight"].requires_grad_(true);
        alone.net->named_parameters()["a.weight"].requires_grad_(true);
      }
      t.train(step, step + 1);
      alone.step(rank.size, step);
    }
    EXPECT(t.impl->sets() == 2);
    expect_same(*t.net, *alone.net);
  });
}

TEST_CASE(
    "optimizer groups: a group added later joins; different ones are an error on every rank") {
  check_as_ranks([](const ThreadRank& rank) {
    const auto part = [](nets::Net& net, bool first) {
      const auto all = net.parameters();
      return first ? std::vector<at::Tensor>(all.begin(), all.begin() + 2)
                   : std::vector<at::Tensor>(all.begin() + 2, all.end());
    };
    const auto first_part = [&](std::vector<at::Tensor> all) {
      all.resize(2);
      return std::make_unique<torch::optim::SGD>(std::move(all), torch::optim::SGDOptions(0.05));
    };
    Training t(rank, nets::mlp(), first_part, kSmallBuckets);
    Alone alone(nets::mlp(), first_part);
    for (int step = 0; step < 12; ++step) {
      if (step == 5) {
        t.inner->add_param_group({part(*t.net, false)});
        alone.optimizer->add_param_group({part(*alone.net, false)});
      }
      t.train(step, step + 1);
      alone.step(rank.size, step);
    }
    EXPECT(t.impl->sets() == 2);
    expect_same(*t.net, *alone.net);
    if (rank.size == 1) return;
    torch::nn::Linear more(4, 4);
    if (rank.rank == 0) t.inner->add_param_group({more->parameters()});
    t.net->zero_grad();
    t.backward(99);
    EXPECT(contains(error_of([&] { t.optimizer->step(); }), "same parameters on all ranks"));
  });
}

TEST_CASE("optimizer groups: groups that ranks add differently are named, then the world goes on") {
  run_as_threads(3, [](const ThreadRank& rank) {
    const auto said_of = [&](const at::Tensor& usual, const at::Tensor& other) {
      Training t(rank, nets::mlp(), nets::sgd());
      t.train(0, 2);
      t.inner->add_param_group(
          {std::vector<at::Tensor>{(rank.rank == 1 ? other : usual).detach().requires_grad_()}});
      t.backward(2);
      const std::string error = error_of([&] { t.optimizer->step(); });
      t.inner->param_groups().pop_back();
      t.train(3, 5);
      return error;
    };
    const at::Tensor square = at::ones({3, 3});
    const std::string usual = "rank 0 has group1.0 float32 [3, 3], parameter 1 of 1; ";
    std::string said = said_of(square, at::ones({9}));
    EXPECT(contains(said, usual + "rank 1 has group1.0 float32 [9], parameter 1 of 1; "));
    said = said_of(square, square.t());
    EXPECT(contains(said, usual + "rank 1 has group1.0 float32 [3, 3] with strides [1, 3], "));
    // Refused by one rank before it is compared: the others do not wait for it.
    said = said_of(square, square.to(at::kComplexFloat));
    EXPECT(contains(said, "void on every rank: rank 1: parameter \"group1.0\" is "));
    EXPECT(contains(said, "floating types only"));
  });
}

TEST_CASE("optimizer groups: skip_synchronize() refuses gradients of parameters that are new") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd());
    t.train(0, 1);
    for (const at::Tensor& p : t.net->parameters()) p.requires_grad_(false);
    const at::Tensor head = at::ones({2}).requires_grad_();
    t.inner->add_param_group({std::vector<at::Tensor>{head}});
    t.optimizer->zero_grad();
    const auto guard = t.optimizer->skip_synchronize();
    t.optimizer->step();  // it has no gradient yet
    (head * double(rank.rank)).sum().backward();
    EXPECT(contains(error_of([&] { t.optimizer->step(); }), "call synchronize() first"));
    EXPECT(head.equal(at::ones({2})));
    t.optimizer->synchronize();
    t.optimizer->step();
    EXPECT(at::allclose(head, at::ones({2}) - 0.025 * (rank.size - 1)));
  });
}

TEST_CASE("optimizer groups: a rank that finds no room for a result keeps no other one waiting") {
  run_as_threads(3, [](const ThreadRank& rank) {
    const DistributedOptimizerOptions fp16 = {.compression = Compression::kFp16};
    Training t(rank, nets::mlp(), nets::sgd(), fp16);
    const at::Tensor late = at::ones({2}).requires_grad_();
    t.inner->add_param_group({std::vector<at::Tensor>{late}});
    const auto backward = [&](int step) {
      t.optimizer->zero_grad();
      (t.net->loss(rank.rank, step) + (late * float(rank.rank)).sum()).backward();
    };
    // In the step that adds a set of buckets, and in one that has two from the beginning.
    for (int step = 0; step < 2; ++step) {
      backward(step);
      if (rank.rank == 1) {  // behind everybody's back, while its bucket is under way
        const at::Storage& storage = t.net->parameters()[0].grad().storage();
        storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
            "no room");
      }
      const std::string error = error_of([&] { t.optimizer->synchronize(); });
      EXPECT(rank.rank == 1 ? contains(error, "no room") : error.empty());
      EXPECT(t.impl->sets() == 2);
      backward(10);
      t.optimizer->synchronize();
      Alone alone;
      backward_alone(*alone.net, rank.size, 10, fp16);
      const auto mine = t.net->parameters(), wanted = alone.net->parameters();
      for (size_t i = 0; i < mine.size(); ++i) EXPECT(same_bits(mine[i].grad(), wanted[i].grad()));
      EXPECT(same_bits(late.grad(), at::ones({2})));
    }
  });
}

TEST_CASE("optimizer groups: a parameter that is added twice has one gradient") {
  check_as_ranks([](const ThreadRank& rank) {
    const auto first_layer = [](std::vector<at::Tensor> all) {
      return std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{all[0], all[1]},
                                                 torch::optim::SGDOptions(0.05));
    };
    const auto rest = [](const nets::Net& net) {
      auto all = net.parameters();
      all.erase(all.begin(), all.begin() + 4);
      all.push_back(all.back());
      return all;
    };
    Training t(rank, nets::listed_twice(), first_layer);
    Alone alone(nets::listed_twice(), first_layer);
    for (int step = 0; step < 8; ++step) {
      if (step == 3) {
        t.inner->add_param_group({rest(*t.net)});
        alone.optimizer->add_param_group({rest(*alone.net)});
      }
      t.train(step, step + 1);
      alone.step(rank.size, step);
    }
    EXPECT(t.impl->sets() == 2);
    expect_same(*t.net, *alone.net);
  });
}

}  // namespace hvd
