#include "tests/support/engine_harness.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/config/reader.h"
#include "core/config/resolve.h"
#include "core/config/validate.h"
#include "core/runtime/device.h"
#include "core/train/checkpointing.h"
#include "tests/support/goldens.h"

namespace trainer::test {

Config family_config(const std::string& family, const std::vector<std::string>& sets, int world_size) {
  // The overrides are read together with the file, as a user's --set would be.
  std::string yaml = load_golden(family).config_yaml;
  const std::string path = ::testing::TempDir() + "/" + family + "." + std::to_string(getpid()) + ".yaml";
  std::FILE* file = std::fopen(path.c_str(), "w");
  TRAINER_CHECK(file != nullptr && std::fputs(yaml.c_str(), file) >= 0 && std::fclose(file) == 0, "cannot write {}",
                path);
  std::vector<std::string> all = {"data.train=[unused.h5]"};  // samples come from a SampleSource
  all.insert(all.end(), sets.begin(), sets.end());
  Config config = read_config({.files = {path}, .sets = all, .environment = {}, .world_size = world_size});
  std::remove(path.c_str());
  resolve_defaults(config, world_size);
  return config;
}

Sample synthetic_sample(std::int64_t step, std::int64_t slot, std::int64_t seq_length, std::int64_t vocab_size) {
  const std::uint64_t key =
      mix_key(mix_key(mix_key(17, "sample"), static_cast<std::uint64_t>(step)), static_cast<std::uint64_t>(slot));
  const auto token = [&](std::int64_t i) {
    return static_cast<std::int32_t>(mix_key(key, static_cast<std::uint64_t>(i)) %
                                     static_cast<std::uint64_t>(vocab_size));
  };
  // 5, 60, 7, 33 of 64 targets count, and so on: no two ranks or micro-batches have the same number.
  constexpr std::int64_t kCounted[] = {5, 60, 7, 33, 64, 1, 20};
  const std::int64_t counted = std::max<std::int64_t>(1, kCounted[(slot + step) % 7] * seq_length / 64);
  Sample sample;
  for (std::int64_t i = 0; i < seq_length; ++i) {
    sample.ids.push_back(token(i));
    sample.targets.push_back(i < counted ? token(i + 1) : kIgnoredTarget);
  }
  return sample;
}

std::vector<std::int32_t> synthetic_documents(std::int64_t step, std::int64_t slot, std::int64_t seq_length) {
  const std::uint64_t key =
      mix_key(mix_key(mix_key(17, "documents"), static_cast<std::uint64_t>(step)), static_cast<std::uint64_t>(slot));
  std::vector<std::int32_t> starts;
  for (std::int64_t i = 1; i < seq_length; ++i)
    if (mix_key(key, static_cast<std::uint64_t>(i)) % 4 == 0) starts.push_back(static_cast<std::int32_t>(i));
  return starts;
}

SampleSource::SampleSource(Engine& engine, Maker maker)
    : shape_(loader_shape(engine.config(), engine.mesh())), maker_(std::move(maker)) {}

SampleSource::SampleSource(Engine& engine)
    : SampleSource(engine,
                   [t = engine.config().train.seq_length, v = engine.config().model.vocab_size,
                    documents = engine.config().data.intra_document_attention](std::int64_t step, std::int64_t slot) {
                     Sample sample = synthetic_sample(step, slot, t, v);
                     if (documents) sample.documents = synthetic_documents(step, slot, t);
                     return sample;
                   }) {}

void SampleSource::seek(std::int64_t step) {
  index_ = step * shape_.accumulation();
}

const MicroBatch& SampleSource::next() {
  const std::int64_t accumulation = shape_.accumulation();
  batch_ = {};
  batch_.step = index_ / accumulation;
  batch_.micro = index_ % accumulation;
  batch_.first_slot = (shape_.dp_rank * accumulation + batch_.micro) * shape_.micro_batch_size;
  for (std::int64_t i = 0; i < shape_.micro_batch_size; ++i) {
    const Sample sample = maker_(batch_.step, batch_.first_slot + i);
    batch_.inputs.insert(batch_.inputs.end(), sample.ids.begin(), sample.ids.end());
    batch_.targets.insert(batch_.targets.end(), sample.targets.begin(), sample.targets.end());
    for (std::int32_t t = 0, start = 0; t < shape_.seq_length; ++t) {
      if (std::find(sample.documents.begin(), sample.documents.end(), t) != sample.documents.end()) start = t;
      if (start == t) batch_.sequence_starts.push_back(static_cast<std::int32_t>(batch_.positions.size()));
      batch_.positions.push_back(t - start);
    }
    batch_.sample_ids.push_back(batch_.first_slot + i);
  }
  batch_.sequence_starts.push_back(static_cast<std::int32_t>(batch_.inputs.size()));
  ++index_;
  return batch_;
}

void load_golden_weights(Engine& engine) {
  for (const Piece& piece : pieces_to_load(engine)) {
    if (piece.tensor.find('/') != std::string::npos) continue;  // moments
    std::vector<double> values(static_cast<std::size_t>(piece.box.numel()));
    std::size_t next = 0;
    for (std::int64_t r = 0; r < piece.box.rows; ++r)
      for (std::int64_t c = 0; c < piece.box.cols; ++c)
        values[next++] = golden_weight(piece.tensor, (piece.box.row0 + r) * piece.global.cols + piece.box.col0 + c);
    if (piece.dtype == Dtype::f64) {
      piece.write(0, piece.box.numel(), values.data());
    } else {
      const std::vector<float> narrow(values.begin(), values.end());
      piece.write(0, piece.box.numel(), narrow.data());
    }
  }
  finish_load(engine);
}

namespace {

/// A device tensor's elements on the host.
struct HostCopy {
  HostCopy(const Context& ctx, const Tensor& from) : memory(static_cast<std::size_t>(from.bytes())), tensor(from) {
    copy_to_host(ctx, memory.data(), from.data, from.bytes());
    synchronize(ctx);
    tensor.data = memory.data();
  }
  std::vector<char> memory;
  Tensor tensor;
};

std::vector<double> read_as_double(const Piece& piece) {
  const auto n = static_cast<std::size_t>(piece.box.numel());
  std::vector<double> values(n);
  if (piece.dtype == Dtype::f64) {
    piece.read(0, piece.box.numel(), values.data());
  } else if (piece.dtype == Dtype::f32) {
    std::vector<float> narrow(n);
    piece.read(0, piece.box.numel(), narrow.data());
    std::copy(narrow.begin(), narrow.end(), values.begin());
  } else {
    std::vector<Bfloat16> narrow(n);
    piece.read(0, piece.box.numel(), narrow.data());
    std::transform(narrow.begin(), narrow.end(), values.begin(), [](Bfloat16 x) { return static_cast<float>(x); });
  }
  return values;
}

}  // namespace

std::vector<double> logits_of(Engine& engine, const MicroBatch& micro_batch) {
  const Batch batch = engine.upload(micro_batch);
  const ModelShape& shape = engine.model().shape();
  const std::int64_t bytes = shape.tokens * shape.vocab * dtype_size(shape.dtype);
  const std::shared_ptr<void> memory = allocate(engine.context().device, bytes, "logits of a test");
  const Tensor on_device = tensor_over(memory.get(), shape.dtype, shape.tokens, shape.vocab);
  const Pass pass{
      .ctx = engine.context(), .tp = engine.tensor_parallel(), .batch = batch, .dropout_key = 0, .dropout = false};
  engine.model().logits(pass, engine.weights(), on_device);
  const HostCopy copy(engine.context(), on_device);
  const Tensor& out = copy.tensor;
  std::vector<double> logits;
  for (std::int64_t n = 0; n < shape.tokens; ++n)
    for (std::int64_t v = 0; v < engine.config().model.vocab_size; ++v)
      logits.push_back(shape.dtype == Dtype::f64 ? out.as<double>()[n * out.stride + v]
                                                 : static_cast<double>(out.as<float>()[n * out.stride + v]));
  return logits;
}

std::vector<OwnedValues> owned_state(Engine& engine, bool copies) {
  std::vector<OwnedValues> owned;
  for (const Piece& piece : copies ? pieces_to_load(engine) : pieces_to_save(engine)) {
    OwnedValues part{piece.tensor, {}, read_as_double(piece)};
    for (std::int64_t r = 0; r < piece.box.rows; ++r)
      for (std::int64_t c = 0; c < piece.box.cols; ++c)
        part.indices.push_back((piece.box.row0 + r) * piece.global.cols + piece.box.col0 + c);
    owned.push_back(std::move(part));
  }
  return owned;
}

std::vector<OwnedValues> owned_gradients(Engine& engine) {
  std::vector<OwnedValues> owned;
  const ParamLayout& layout = engine.model().layout();
  const Communicator& replicas = engine.mesh().zero_replicas();
  for (ParamId id = 0; id < layout.num_params(); ++id) {
    const LocalParam& local = layout.local(id);
    const ParamDecl& decl = layout.decl(id);
    if (local.copy_index != 0 || replicas.rank() != 0) continue;
    const FlatRange shard = engine.optimizer().range(decl.block);
    const HostCopy copy(engine.context(), engine.sink().shard(decl.block));
    const Tensor& gradients = copy.tensor;
    OwnedValues part{decl.name, {}, {}};
    for (std::int64_t i = 0; i < local.numel(); ++i) {
      const std::int64_t row = local.global_row + i / local.cols, flat = local.offset + i - shard.first;
      if (row >= decl.rows || flat < 0 || flat >= shard.count) continue;
      part.indices.push_back(row * decl.cols + local.global_col + i % local.cols);
      part.values.push_back(gradients.dtype == Dtype::f64 ? gradients.as<double>()[flat]
                                                          : static_cast<double>(gradients.as<float>()[flat]));
    }
    owned.push_back(std::move(part));
  }
  return owned;
}

WholeTensors whole(const std::vector<OwnedValues>& owned) {
  std::map<std::string, std::map<std::int64_t, double>> elements;
  for (const OwnedValues& part : owned)
    for (std::size_t i = 0; i < part.indices.size(); ++i) elements[part.tensor][part.indices[i]] = part.values[i];
  WholeTensors tensors;
  for (const auto& [name, values] : elements) {
    TRAINER_CHECK(values.rbegin()->first + 1 == static_cast<std::int64_t>(values.size()), "{} has holes", name);
    for (const auto& [index, value] : values) tensors[name].push_back(value);
  }
  return tensors;
}

Worst compare(Engine& engine, const std::vector<OwnedValues>& owned, const WholeTensors& reference, double relative,
              double absolute) {
  std::vector<std::string> names;
  for (const auto& [name, values] : reference) names.push_back(name);
  std::vector<double> sums(2 * names.size(), 0.0);  // squared differences, then elements seen
  for (const OwnedValues& part : owned) {
    const auto place =
        static_cast<std::size_t>(std::lower_bound(names.begin(), names.end(), part.tensor) - names.begin());
    TRAINER_CHECK(place < names.size() && names[place] == part.tensor, "{} is not in the reference", part.tensor);
    const std::vector<double>& expected = reference.at(part.tensor);
    for (std::size_t i = 0; i < part.indices.size(); ++i) {
      const double difference = part.values[i] - expected.at(static_cast<std::size_t>(part.indices[i]));
      sums[place] += difference * difference;
    }
    sums[names.size() + place] += static_cast<double>(part.indices.size());
  }
  engine.mesh().world().all_reduce({}, tensor_over(sums.data(), Dtype::f64, 1, static_cast<std::int64_t>(sums.size())),
                                   ReduceOp::sum);
  Worst worst;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::vector<double>& expected = reference.at(names[i]);
    TRAINER_CHECK(static_cast<std::size_t>(sums[names.size() + i]) == expected.size(), "{}: {} of {} elements",
                  names[i], sums[names.size() + i], expected.size());
    double squares = 0.0;
    for (const double value : expected) squares += value * value;
    const double allowed = relative * std::sqrt(squares) + absolute * std::sqrt(static_cast<double>(expected.size()));
    double ratio = std::sqrt(sums[i]) / allowed;
    if (std::isnan(ratio)) ratio = std::numeric_limits<double>::infinity();
    if (ratio > worst.ratio) worst = {ratio, names[i]};
  }
  return worst;
}

}  // namespace trainer::test
