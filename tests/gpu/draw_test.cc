// Initial weights do not depend on where they are drawn.
#include "tests/gpu/twin.h"

namespace trainer::testing {
namespace {

TEST(GpuDrawNormal, BitsOfTheCpu) {
  TRAINER_REQUIRE_GPU();
  struct Shape {
    std::int64_t rows, cols;
  };
  for (const Shape shape : {Shape{1, 1}, Shape{5, 64}, Shape{37, 257}, Shape{1000, 1}, Shape{1024, 1024}})
    for (const Layout& layout : layouts())
      for (const std::int64_t first_row : {std::int64_t{0}, std::int64_t{1} << 32}) {
        SCOPED_TRACE(::testing::Message() << "[" << shape.rows << ", " << shape.cols << "] from row " << first_row);
        Twins twins;
        const Twin& out = twins.make("out", Dtype::f64, shape.rows, shape.cols, layout).fill(7).exact();
        twins.check([&](const Context& ctx) {
          ops::draw_normal(ctx, {.out = out.tensor(ctx),
                                 .key = 42,
                                 .first_row = first_row,
                                 .first_col = 3,
                                 .total_cols = shape.cols + 5,
                                 .std = 0.02});
        });
      }
}

// 2^26 draws, so that rare words are met: those of long tails, and angles beside an axis.
TEST(GpuDrawNormal, BitsOfManyDraws) {
  TRAINER_REQUIRE_GPU();
  constexpr std::int64_t kRows = 64, kCols = 1 << 20;
  std::vector<double> cpu(kCols), gpu(kCols);
  const Context& ctx = gpu_context();
  const auto memory = allocate(ctx.device, kCols * dtype_size(Dtype::f64), "a test");
  for (std::int64_t row = 0; row < kRows; ++row) {
    ops::DrawNormalArgs args{.key = 7, .first_row = row, .first_col = 0, .total_cols = kCols, .std = 1.0};
    args.out = tensor_over(memory.get(), Dtype::f64, 1, kCols);
    ops::draw_normal(ctx, args);
    copy_to_host(ctx, gpu.data(), memory.get(), kCols * dtype_size(Dtype::f64));
    args.out = tensor_over(cpu.data(), Dtype::f64, 1, kCols);
    ops::draw_normal({}, args);
    synchronize(ctx);
    ASSERT_EQ(cpu, gpu) << "row " << row;
  }
}

}  // namespace
}  // namespace trainer::testing
