// The arrows of docs/architecture.md, held against the #include lines of the whole tree.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "core/runtime/check.h"
#include "tests/arrows/include_rules.h"
#include "tests/support/files.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

IncludeRules documented_rules() {
  return parse_rules(read_file(fs::path(TRAINER_SOURCE_DIR) / "docs/architecture.md"));
}

TEST(Arrows, EveryIncludeLineIsAllowed) {
  const IncludeRules rules = documented_rules();
  int files = 0;
  for (const char* top : {"core", "kernels", "parallel", "optim", "data", "launch", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(TRAINER_SOURCE_DIR) / top)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cc" && extension != ".cu" && extension != ".cuh") continue;
      ++files;
      const std::string path = fs::relative(entry.path(), TRAINER_SOURCE_DIR);
      for (const std::string& violation : violations(rules, path, read_file(entry.path()))) ADD_FAILURE() << violation;
    }
  }
  EXPECT_GT(files, 100);
}

TEST(Arrows, TheTableHasNoCycle) {
  const IncludeRules rules = documented_rules();
  std::set<std::string> done;
  const std::function<void(const std::string&, std::set<std::string>)> visit = [&](const std::string& box,
                                                                                   std::set<std::string> above) {
    ASSERT_TRUE(above.insert(box).second) << "a cycle through " << box;
    for (const std::string& below : rules.boxes.at(box))
      if (!done.contains(below)) visit(below, above);
    done.insert(box);
  };
  for (const auto& [box, ignored] : rules.boxes) visit(box, {});
}

TEST(Arrows, EveryBoxOfTheTableExists) {
  for (const auto& [box, ignored] : documented_rules().boxes)
    EXPECT_TRUE(fs::is_directory(fs::path(TRAINER_SOURCE_DIR) / box)) << box;
}

// The checker itself, on planted lines.
using Lines = std::vector<std::string>;

TEST(Arrows, FindsAPlantedArrowThatPointsUp) {
  EXPECT_EQ(violations(documented_rules(), "optim/planted.cc",
                       "#include <vector>\n#include \"optim/optimizer.h\"\n#include \"core/model/block.h\"\n"),
            (Lines{"optim/planted.cc:3: optim may not include core/model (\"core/model/block.h\")"}));
  EXPECT_EQ(violations(documented_rules(), "core/runtime/planted.h", "  #  include \"core/config/config.h\" // why\n"),
            (Lines{"core/runtime/planted.h:1: core/runtime may not include core/config (\"core/config/config.h\")"}));
  EXPECT_EQ(violations(documented_rules(), "core/train/planted.cc", "#include \"tests/support/gradcheck.h\"\n"),
            (Lines{"core/train/planted.cc:1: core/train may not include tests (\"tests/support/gradcheck.h\")"}));
}

TEST(Arrows, FindsAPlantedLibraryHeader) {
  const IncludeRules rules = documented_rules();
  EXPECT_EQ(violations(rules, "core/model/planted.cc", "#include <mpi.h>\n"),
            (Lines{"core/model/planted.cc:1: <mpi.h> does not belong here"}));
  EXPECT_EQ(violations(rules, "parallel/mpi_communicator.cc", "#include <mpi.h>\n"), Lines{});
  EXPECT_EQ(violations(rules, "data/planted.cc", "#include <yaml-cpp/yaml.h>\n#include <hdf5.h>\n"),
            (Lines{"data/planted.cc:1: <yaml-cpp/yaml.h> does not belong here"}));
  EXPECT_EQ(violations(rules, "kernels/cpu/planted.cc", "#include <cuda_runtime.h>\n"),
            (Lines{"kernels/cpu/planted.cc:1: <cuda_runtime.h> does not belong here"}));
}

TEST(Arrows, FindsAFileOutsideEveryBox) {
  EXPECT_EQ(violations(documented_rules(), "core/elsewhere/planted.cc", "").size(), 1u);
  EXPECT_EQ(violations(documented_rules(), "data/planted.cc", "#include \"core/elsewhere/x.h\"\n").size(), 1u);
}

TEST(Arrows, ATableThatNamesNoSuchBoxIsRefused) {
  const std::string libraries = "| header | only in |\n|---|---|\n| mpi.h | a/\\* |\n";
  EXPECT_THROW(parse_rules("| box | may include |\n|---|---|\n| a | b |\n\n" + libraries), Error);
  EXPECT_THROW(parse_rules(libraries), Error);
}

TEST(Arrows, AStarStandsForAnyText) {
  EXPECT_TRUE(matches("parallel/mpi_*", "parallel/mpi_communicator.cc"));
  EXPECT_TRUE(matches("*.h", "a/b.h"));
  EXPECT_TRUE(matches("a*b*c", "a--b-bc"));
  EXPECT_FALSE(matches("parallel/mpi_*", "parallel/mesh.cc"));
  EXPECT_FALSE(matches("mpi.h", "mpi.hpp"));
}

}  // namespace
}  // namespace trainer
