#include "tests/gpu/twin.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/runtime/dtype.h"
#include "core/runtime/rng.h"

namespace trainer::testing {
namespace {

constexpr unsigned char kGap = 0xA5;

struct Gpu {
  Gpu() : owner({DeviceKind::cuda, 0}), backend(make_cuda_backend(owner.context())), ctx(owner.context()) {
    ctx.backend = backend.get();
  }
  DeviceContext owner;
  std::shared_ptr<CudaBackend> backend;
  Context ctx;
};

/// Relative error of one rounding, doubled: two roundings of nearly the same number may go different ways. float32:
/// sums in another order, too.
double relative_tolerance(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16:
      return 0x1p-7;
    case Dtype::f16:
      return 0x1p-10;
    case Dtype::f32:
      return 2e-5;
    default:
      return 1e-12;
  }
}

}  // namespace

const Context& gpu_context() {
  static const Gpu gpu;
  return gpu.ctx;
}

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {{0, 0}, {8, 0}, {24, 8}, {5, 0}, {4, 1}};
  return all;
}

const std::vector<Dtype>& gpu_dtypes() {
  static const std::vector<Dtype> all = {Dtype::f32, Dtype::bf16, Dtype::f16};
  return all;
}

Twin::Twin(std::string name, Dtype dtype, std::int64_t rows, std::int64_t cols, Layout layout)
    : name_(std::move(name)),
      dtype_(dtype),
      rows_(rows),
      cols_(cols),
      stride_(cols + layout.padding),
      first_col_(layout.first_col),
      initial_(static_cast<std::size_t>(rows * stride_ * dtype_size(dtype)), kGap),
      device_(allocate(gpu_context().device, static_cast<std::int64_t>(initial_.size()), "a test")) {
  TRAINER_CHECK(layout.first_col <= layout.padding, "the view leaves its rows");
  fill(0);
}

std::int64_t Twin::offset(std::int64_t row, std::int64_t col) const {
  return (row * stride_ + first_col_ + col) * dtype_size(dtype_);
}

Twin& Twin::set(std::int64_t row, std::int64_t col, double value) {
  unsigned char* to = initial_.data() + offset(row, col);
  const auto put = [to](auto element) { std::memcpy(to, &element, sizeof element); };
  switch (dtype_) {
    case Dtype::f64:
      put(value);
      break;
    case Dtype::f32:
      put(static_cast<float>(value));
      break;
    case Dtype::bf16:
      put(Bfloat16(static_cast<float>(value)));
      break;
    case Dtype::f16:
      put(Float16(static_cast<float>(value)));
      break;
    case Dtype::i32:
      put(static_cast<std::int32_t>(value));
      break;
    case Dtype::u16:
      put(static_cast<std::uint16_t>(value));
      break;
    default:
      put(static_cast<unsigned char>(value));
  }
  return *this;
}

double Twin::get(const Bytes& bytes, std::int64_t row, std::int64_t col) const {
  const unsigned char* from = bytes.data() + offset(row, col);
  const auto read = [from](auto element) {
    std::memcpy(&element, from, sizeof element);
    return element;
  };
  switch (dtype_) {
    case Dtype::f64:
      return read(0.0);
    case Dtype::f32:
      return static_cast<double>(read(0.0f));
    case Dtype::bf16:
      return static_cast<double>(static_cast<float>(read(Bfloat16{})));
    case Dtype::f16:
      return static_cast<double>(static_cast<float>(read(Float16{})));
    case Dtype::i32:
      return read(std::int32_t{0});
    case Dtype::u16:
      return read(std::uint16_t{0});
    default:
      return *from;
  }
}

Twin& Twin::fill(double value) {
  for (std::int64_t r = 0; r < rows_; ++r)
    for (std::int64_t c = 0; c < cols_; ++c) set(r, c, value);
  return *this;
}

Twin& Twin::randomise(std::uint64_t key, double scale, double mean) {
  for (std::int64_t r = 0; r < rows_; ++r)
    for (std::int64_t c = 0; c < cols_; ++c)
      set(r, c, mean + scale * normal_at(key, static_cast<std::uint64_t>(r * cols_ + c)));
  return *this;
}

Tensor Twin::tensor(const Context& ctx) const {
  unsigned char* start = ctx.device.kind == DeviceKind::cuda ? static_cast<unsigned char*>(device_.get()) : cpu_.data();
  return {start + offset(0, 0), dtype_, rows_, cols_, stride_};
}

void Twin::reset(const Context& ctx) {
  if (ctx.device.kind == DeviceKind::cuda)
    copy_to_device(ctx, device_.get(), initial_.data(), static_cast<std::int64_t>(initial_.size()));
  else
    cpu_ = initial_;
}

void Twin::fetch(const Context& gpu) {
  before_ = std::move(gpu_);
  gpu_.assign(initial_.size(), 0);
  copy_to_host(gpu, gpu_.data(), device_.get(), static_cast<std::int64_t>(gpu_.size()));
}

void Twin::compare() const {
  const double relative = relative_tolerance(dtype_) * looseness_;
  double largest = least_;
  for (std::int64_t r = 0; r < rows_; ++r)
    for (std::int64_t c = 0; c < cols_; ++c)
      if (std::isfinite(on_cpu(r, c))) largest = std::max(largest, std::fabs(on_cpu(r, c)));
  Bytes cpu = cpu_;
  int shown = 0;
  for (std::int64_t r = 0; r < rows_; ++r)
    for (std::int64_t c = 0; c < cols_; ++c) {
      const double expected = on_cpu(r, c), got = on_gpu(r, c);
      const bool near = is_floating(dtype_) && !exact_
                            ? std::fabs(got - expected) <= relative * (std::fabs(expected) + 0.05 * largest)
                            : got == expected;
      if (!near && got != expected && !(std::isnan(got) && std::isnan(expected)) && ++shown <= 3)
        ADD_FAILURE() << name_ << "[" << r << ", " << c << "] is " << got << " on the card, " << expected
                      << " on the CPU; it was " << initial(r, c) << " before";
      std::memcpy(cpu.data() + offset(r, c), gpu_.data() + offset(r, c), static_cast<std::size_t>(dtype_size(dtype_)));
    }
  if (shown > 3) ADD_FAILURE() << name_ << ": " << shown << " elements differ";
  EXPECT_TRUE(cpu == gpu_) << name_ << ": something was written between the rows";
}

Twin& Twins::make_state(const UpdateState& state) {
  Twin& twin = make("state", Dtype::u8, 1, sizeof(UpdateState));
  const auto* bytes = reinterpret_cast<const unsigned char*>(&state);
  for (std::size_t i = 0; i < sizeof state; ++i) twin.set(0, static_cast<std::int64_t>(i), bytes[i]);
  return twin;
}

UpdateState* state_of(const Twin& twin, const Context& ctx) {
  return static_cast<UpdateState*>(twin.tensor(ctx).data);
}

void Twins::check(const std::function<void(const Context&)>& op) {
  const Context cpu{};
  const Context& gpu = gpu_context();
  for (Twin& twin : twins_) twin.reset(cpu);
  op(cpu);
  // The last two are compared: what is timed in the first one, to choose an algorithm, may run many times.
  for (int round = 0; round < 3; ++round) {
    for (Twin& twin : twins_) twin.reset(gpu);
    op(gpu);
    for (Twin& twin : twins_) twin.fetch(gpu);
    synchronize(gpu);
  }
  for (const Twin& twin : twins_) {
    EXPECT_TRUE(twin.varies() || twin.same_as_before_fetch()) << twin.name() << ": not the same bits twice";
    twin.compare();
  }
}

}  // namespace trainer::testing
