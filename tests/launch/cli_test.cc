// The command line, and what a user gets wrong: exit codes, and messages that are complete and said once.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>

#include "tests/launch/run_folder.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

namespace trainer::launch_test {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

TEST(CommandLine, HelpTeaches) {
  const RunFolder folder;
  const Result result = folder.command("--help");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(mentions(result.out, {"mpirun -np 4 trainer --config", "--set", "--print-config", "checkpoint", "data",
                                    "2 configuration", "75"}));
  EXPECT_EQ(result.err, "");
}

TEST(CommandLine, VersionSaysWhatIsBuiltIn) {
  const RunFolder folder;
  const Result result = folder.command("--version");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(mentions(result.out, {"trainer ", "compiler", "MPI", "CUDA"}));
}

TEST(CommandLine, PrintedConfigIsAConfigWithOrigins) {
  const RunFolder folder;
  const Result result =
      folder.command("--config config.yaml --set optimizer.lr=2e-5 --print-config", {{"TRAINER__TRAIN__SEED", "77"}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(mentions(result.out, {"lr: 2.0e-05", "seed: 77", "TRAINER__TRAIN__SEED", "config.yaml", "head_dim: 8"}));
  EXPECT_FALSE(std::filesystem::exists(folder / "run")) << "printing started a run";
  write_file(folder / "printed.yaml", result.out);
  const Result again = folder.command("--config printed.yaml --print-config");
  EXPECT_EQ(again.exit_code, 0) << again.err;
  const auto values = [](const std::string& text) {
    std::string all;
    for (const std::string& line : lines_of(text))
      all += line.substr(0, line.find_last_not_of(' ', line.find(" #")) + 1);
    return all;
  };
  EXPECT_EQ(values(again.out), values(result.out));
}

TEST(CommandLine, WhatIsNotUnderstoodIsRefused) {
  const RunFolder folder;
  for (const char* arguments : {"--confg config.yaml", "", "trian --config config.yaml", "--config missing.yaml",
                                "--config config.yaml --set lr=1", "--config .", "checkpoint look run"}) {
    const Result result = folder.command(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments << "\n" << result.out << result.err;
    EXPECT_NE(result.err, "") << arguments;
  }
  EXPECT_TRUE(mentions(folder.command("--confg config.yaml").err, {"--confg"}));
  EXPECT_TRUE(mentions(folder.command("--config missing.yaml").err, {"missing.yaml"}));
}

TEST(CommandLine, TheLauncherSaysWhatIsWrong) {
  const RunFolder folder;
  const unsigned cores = std::thread::hardware_concurrency();
  const std::string fewer = fmt::format("right would be at most {} on this machine", cores);
  for (const auto& [arguments, part] : {std::pair{"", "nothing to start"},
                                        {"-np 2 no-such-program --config config.yaml", "no-such-program"},
                                        {"-np two true", "-np two"},
                                        {"-np 99999 true", fewer.c_str()},
                                        {"-np 99999999999999999999 true", "right would be a number of ranks"}}) {
    const Result result =
        Job(folder.path(), fmt::format("{}/launch/mpirun.sh {}", TRAINER_SOURCE_DIR, arguments), {}).wait();
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_TRUE(mentions(result.err, {part}));
  }
  const auto launch = [&](const std::string& arguments) {
    return Job(folder.path(), fmt::format("{}/launch/mpirun.sh {} true", TRAINER_SOURCE_DIR, arguments), {}).wait();
  };
  EXPECT_EQ(launch(fmt::format("-np {}", cores + 1)).exit_code, 0) << "a small test may have more ranks than cores";
  EXPECT_EQ(launch("-np 3 --host localhost:3").exit_code, 0);
  const Result slots = launch(fmt::format("-np {} --host localhost:2", 4 * cores + 16));
  EXPECT_EQ(slots.exit_code, 1);
  EXPECT_TRUE(mentions(slots.err, {fmt::format("have the hosts slots for {} ranks", 4 * cores + 16)}));
}

TEST(CommandLine, DataPrepareSaysWhatItTookAndWhatNot) {
  const RunFolder folder;
  std::filesystem::create_directories(folder / "texts/more");
  for (int i = 0; i < 30; ++i) write_file(folder / fmt::format("texts/more/{:02}.txt", i), "ten bytes\n");
  write_file(folder / "texts/a.jsonl", "{\"body\": \"one\"}\n{\"body\": \"two\"}\n{\"body\": \"\"}\n");
  write_file(folder / "texts/b.md", "# b");
  const std::string command = "data prepare --input texts --output-dir shards";
  const Result result = folder.command(command + " --jsonl-key body");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(mentions(result.out, {"texts/a.jsonl              2  6 B\n", "texts/more/17.txt          1  10 B\n",
                                    "12 more files             12  120 B\n", "a document without text",
                                    ".md: in a folder", "shards/train-00000.h5", "32 documents, 306 B of text"}));
  const Result refused = folder.command(command + " --overwrite");
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_TRUE(mentions(refused.err, {"texts/a.jsonl:1: has no key 'text'; it has 'body'"}));
}

/// A Slurm job without a Slurm: what the script gives to mpirun, and what it does with the exit code.
TEST(CommandLine, SlurmScriptHandsTheEnvironmentToTheRanks) {
  const RunFolder folder;
  std::filesystem::create_directory(folder / "bin");
  const auto program = [&](const std::string& name, const std::string& text) {
    write_file(folder / ("bin/" + name), "#!/bin/bash\n" + text);
    std::filesystem::permissions(folder / ("bin/" + name), std::filesystem::perms::owner_all);
  };
  program("mpirun", "echo \"$@\" > arguments; exit 75\n");
  program("scontrol", "echo \"$@\" > requeued\n");
  const Environment environment{{"SLURM_NTASKS", "3"},        {"SLURM_CPUS_PER_TASK", "5"},
                                {"SLURM_JOB_ID", "17"},       {"TRAINER__OPTIMIZER__LR", "1e-4"},
                                {"TRAINER_FAULT", ""},        {"NCCL_SOCKET_IFNAME", "eth 0"},
                                {"OMPI_MCA_btl", "tcp,self"}, {"NOBODYS_BUSINESS", "1"}};
  Job job(folder.path(),
          fmt::format("PATH={}/bin:$PATH exec bash {}/launch/slurm/train-mpirun.sbatch a.yaml --set train.seed=2",
                      folder.path(), TRAINER_SOURCE_DIR),
          environment);
  EXPECT_EQ(job.wait().exit_code, 75);
  EXPECT_EQ(read_file(folder / "requeued"), "requeue 17\n");
  const std::string arguments = read_file(folder / "arguments");
  EXPECT_TRUE(
      mentions(arguments, {"-np 3 ", " -x OMP_NUM_THREADS ", " -x TRAINER__OPTIMIZER__LR ", " -x TRAINER_FAULT ",
                           " -x NCCL_SOCKET_IFNAME ", " trainer --config a.yaml --set train.seed=2\n"}));
  EXPECT_EQ(count_of(arguments, "OMPI_"), 0) << "mpirun hands these on by itself";
  EXPECT_EQ(count_of(arguments, "NOBODYS_BUSINESS") + count_of(arguments, "SLURM_"), 0) << arguments;
}

TEST(CommandLine, SeveralRanksAnswerOnce) {
  const RunFolder folder;
  const std::string four = fmt::format("{}/launch/mpirun.sh -np 4 {} ", TRAINER_SOURCE_DIR, TRAINER_BINARY);
  const Result wrong = Job(folder.path(), four + "--confg config.yaml", {}).wait();
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_EQ(count_of(wrong.out + wrong.err, "--confg"), 1) << wrong.out << wrong.err;
  const Result version = Job(folder.path(), four + "--version", {}).wait();
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(count_of(version.out, "compiler"), 1) << version.out;
  const Result printed = Job(folder.path(), four + "--config config.yaml --print-config", {}).wait();
  EXPECT_EQ(printed.exit_code, 0);
  EXPECT_EQ(count_of(printed.out, "data_parallel_size: 4"), 1) << printed.out;
}

TEST(CommandLine, CommandsOfOneProcessRefuseSeveral) {
  const RunFolder folder;
  const std::string two = fmt::format("{}/launch/mpirun.sh -np 2 {} ", TRAINER_SOURCE_DIR, TRAINER_BINARY);
  for (const char* arguments : {"data prepare --input config.yaml --output-dir shards", "checkpoint show run"}) {
    const Result refused = Job(folder.path(), two + arguments, {}).wait();
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_TRUE(mentions(refused.err, {"works in one process", "launcher of 2 ranks"}));
    EXPECT_EQ(count_of(refused.err, "trainer: "), 1) << refused.err;
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "shards"));
  const Result plan = Job(folder.path(), two + "plan --config config.yaml", {}).wait();
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_EQ(count_of(plan.out, "2 ranks: data parallel 2"), 1) << plan.out;
  const Result keys = Job(folder.path(), two + "config keys comm", {}).wait();
  EXPECT_EQ(count_of(keys.out, "timeout_seconds"), 1) << keys.out;
}

TEST(CommandLine, AnswersThatCannotBeWrittenAreNoSuccess) {
  const RunFolder folder;
  for (const char* arguments :
       {"--help", "--config config.yaml --print-config", "plan --config config.yaml", "config keys comm"}) {
    const Result full = Job(folder.path(), fmt::format("exec {} {} > /dev/full", TRAINER_BINARY, arguments), {}).wait();
    EXPECT_EQ(full.exit_code, 1) << arguments;
    EXPECT_TRUE(mentions(full.err, {"standard output cannot be written"}));
  }
  const Result trains =
      Job(folder.path(), fmt::format("exec {} --config config.yaml > /dev/full", TRAINER_BINARY), {}).wait();
  EXPECT_EQ(trains.exit_code, 0) << trains.err;
  EXPECT_FALSE(folder.metrics().empty());
}

TEST(CommandLine, OneProcessPrintsTheConfigOfAJobOfMany) {
  const RunFolder folder;
  const std::string split = "--config config.yaml --set parallelism.tensor_parallel_size=2 --print-config";
  const Result two = folder.command(split);
  EXPECT_EQ(two.exit_code, 0) << two.err;
  EXPECT_TRUE(mentions(two.out, {"# As for a job of 2 ranks.", "tensor_parallel_size: 2", "data_parallel_size: 1"}));
  const Result four = folder.command(split + " --ranks 4");
  EXPECT_EQ(four.exit_code, 0) << four.err;
  EXPECT_TRUE(mentions(four.out, {"# As for a job of 4 ranks.", "data_parallel_size: 2"}));
  EXPECT_TRUE(mentions(folder.command("--config config.yaml --print-config").out, {"# As for a job of 1 rank."}));
  EXPECT_EQ(folder.command("--config config.yaml --ranks 4").exit_code, 2) << "the launcher says how many start";
}

TEST(CommandLine, TooFewRanksAreToldHowToStart) {
  const RunFolder folder;
  for (const char* command : {"", "bench "}) {
    const Result result =
        folder.command(std::string(command) + "--config config.yaml --set parallelism.tensor_parallel_size=2");
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_TRUE(mentions(result.err, {"tensor_parallel_size 2 needs 2 ranks", "the job has 1 rank;",
                                      "'mpirun -np 2 trainer ...'", "tensor_parallel_size 1"}));
  }
  EXPECT_TRUE(mentions(folder.command("--config config.yaml --set train.device=gpu").err, {"did you mean cuda"}));
}

TEST(CommandLine, LinksAreTimedWithoutAConfig) {
  const RunFolder folder;
  const std::string four = fmt::format("{}/launch/mpirun.sh -np 4 {} ", TRAINER_SOURCE_DIR, TRAINER_BINARY);
  const Result whole = Job(folder.path(), four + "bench --comm --comm-max-mib 1", {}).wait();
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(count_of(whole.out, "world "), 9) << "three operations of three sizes\n" << whole.out;
  const Result split =
      Job(folder.path(), four + "bench --comm --comm-max-mib 1 --set parallelism.tensor_parallel_size=2", {}).wait();
  EXPECT_EQ(split.exit_code, 0) << split.err;
  EXPECT_TRUE(mentions(split.out, {"world ", "tp ", "dp "}));
  const Result alone = folder.command("bench --comm");
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_TRUE(mentions(alone.err, {"there is one rank", "mpirun -np N trainer bench --comm"}));
  EXPECT_TRUE(mentions(folder.command("bench").err, {"--config FILE"}));
}

TEST(CommandLine, BenchSaysFirstThatItsResultCannotBeWritten) {
  const RunFolder folder;
  const Result nowhere = folder.command("bench --config config.yaml --json nowhere/result.json");
  EXPECT_EQ(nowhere.exit_code, 2) << nowhere.err;
  EXPECT_TRUE(mentions(nowhere.err, {"--json: cannot write to 'nowhere/result.json': No such file or directory"}));
  EXPECT_EQ(nowhere.out, "") << "it was found out at the start";
  const Result never = folder.command("bench --config config.yaml --floor-seconds nan");
  EXPECT_EQ(never.exit_code, 2) << never.err;
  EXPECT_TRUE(mentions(never.err, {"--floor-seconds nan"}));
}

TEST(CommandLine, PlanSaysWhatFitsAndRuns) {
  const RunFolder folder;
  const std::string plan = "plan --config config.yaml --set train.device=auto ";
  const Result fits = folder.command(plan + "--card A100-40GB");
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
  EXPECT_TRUE(mentions(fits.out, {"1 rank: data parallel 1", "a100-40 has 39.4 GiB: fits"}));
  EXPECT_EQ(count_of(fits.out, "smallest change"), 0) << fits.out;
  EXPECT_EQ(count_of(fits.out, "zero_resident_layers"), 0) << fits.out;
  const std::string zero_3 = plan + "--ranks 2 --card A100-40GB --set parallelism.zero_stage=3 ";
  EXPECT_TRUE(mentions(folder.command(zero_3).out, {"parallelism.zero_resident_layers: 2 would fit as well"}));
  const Result all_stay = folder.command(zero_3 + "--set parallelism.zero_resident_layers=2");
  EXPECT_EQ(count_of(all_stay.out, "would fit as well"), 0) << all_stay.out;
  const std::string large = plan +
                            "--set model.hidden_size=2048 --set model.head_dim=64 --set model.num_layers=16 "
                            "--set model.intermediate_size=8192 ";
  const Result change = folder.command(large + "--card 10");
  EXPECT_EQ(change.exit_code, 5) << change.out;
  EXPECT_TRUE(mentions(change.out, {"the card has 10.0 GiB: does not fit", "smallest change that fits: --set "}));
  EXPECT_TRUE(mentions(folder.command(plan + "--card ''").err, {"--card '' is not known"}));
  const Result many = folder.command(
      "plan --set model.hidden_size=65536 --set model.num_layers=1 --set model.num_attention_heads=32768 "
      "--set model.intermediate_size=65536 --set model.vocab_size=10 --set train.seq_length=1 "
      "--set train.global_batch_size=131072 --set train.train_steps=1 --set parallelism.tensor_parallel_size=32768 "
      "--set parallelism.data_parallel_size=131072");
  EXPECT_EQ(many.exit_code, 2) << many.out;
  EXPECT_TRUE(mentions(many.err, {"asks for 4294967296 ranks"}));
  const Result nothing = folder.command(large + "--card 1");
  EXPECT_EQ(nothing.exit_code, 5) << nothing.out;
  EXPECT_TRUE(mentions(nothing.out, {"nothing fits on these ranks: the least is ", "take more ranks"}));
  const std::string volta_plan =
      fmt::format("plan --config {}/configs/14b.yaml --ranks 8 --card v100-32", TRAINER_SOURCE_DIR);
  EXPECT_TRUE(mentions(folder.command(volta_plan).out,
                       {"of the host's memory a rank)\nwithout the host's memory: --set ", "tensor_parallel_size=8"}));
  const Result offloads = folder.command(volta_plan + " --set optimizer.offload=true");
  EXPECT_TRUE(mentions(offloads.out, {"smallest change that fits: --set "}));
  EXPECT_EQ(count_of(offloads.out, "without the host's memory"), 0) << offloads.out;
  const Result volta = folder.command(plan + "--set precision.dtype=bf16 --card v100-32");
  EXPECT_EQ(volta.exit_code, 2) << volta.out;
  EXPECT_EQ(count_of(volta.out, "attention workspace"), 0) << volta.out;
  EXPECT_TRUE(mentions(volta.out, {"train.attention: auto is builtin there", "--set precision.dtype=fp16"}));
  EXPECT_TRUE(mentions(volta.err, {"precision.dtype: bf16 needs compute capability 8.0", "right would be fp16"}));
}

TEST(CommandLine, WrongEnvironmentIsRefused) {
  const RunFolder folder;
  const Result fault = folder.command("--config config.yaml", {{"TRAINER_FAULT", "site=step,action=explode"}});
  EXPECT_EQ(fault.exit_code, 2);
  EXPECT_TRUE(mentions(fault.err, {"TRAINER_FAULT", "explode"}));
  const Result print = folder.command("--config config.yaml", {{"TRAINER_PRINT", "poetry"}});
  EXPECT_EQ(print.exit_code, 2);
  EXPECT_TRUE(mentions(print.err, {"TRAINER_PRINT", "poetry"}));
  const Result key = folder.command("--config config.yaml", {{"TRAINER__OPTIMIZER__LT", "1"}});
  EXPECT_EQ(key.exit_code, 2);
  EXPECT_TRUE(mentions(key.err, {"TRAINER__OPTIMIZER__LT"}));
}

TEST(Faults, OfAConfigurationAreAllListedOnce) {
  const RunFolder folder;
  write_file(folder / "faults.yaml", "optimizer:\n  lr: fast\n  bete2: 0.9\ntrain:\n  seed: 010\nmodle: {}\n");
  for (const int ranks : {1, 4}) {
    std::string command = ranks == 1 ? "" : fmt::format("{}/launch/mpirun.sh -np 4 ", TRAINER_SOURCE_DIR);
    Job job(folder.path(), fmt::format("{}{} --config config.yaml --config faults.yaml", command, TRAINER_BINARY), {});
    const Result result = job.wait();
    EXPECT_EQ(result.exit_code, 2) << result.err;
    for (const char* fault : {"faults.yaml:2", "faults.yaml:3", "faults.yaml:5", "faults.yaml:6"})
      EXPECT_EQ(count_of(result.err, fault), 1) << fault << " with " << ranks << " ranks\n" << result.err;
    EXPECT_TRUE(mentions(result.err, {"fast", "beta2", "010", "model"}));
    EXPECT_LT(result.seconds, 10);
    EXPECT_TRUE(job.is_gone());
  }
}

TEST(Faults, OfLayoutsNameBothNumbers) {
  const RunFolder folder;
  struct Case {
    int ranks;
    std::vector<std::string> sets, said;
  };
  const std::vector<Case> cases = {
      {3, {"parallelism.tensor_parallel_size=3", "model.num_attention_heads=8", "model.head_dim=8"}, {"8", "3"}},
      {4, {"parallelism.tensor_parallel_size=4", "model.num_attention_heads=6", "model.head_dim=8"}, {"6", "4"}},
      {3,
       {"parallelism.tensor_parallel_size=3", "model.num_attention_heads=6", "model.head_dim=8",
        "model.num_key_value_heads=3", "model.intermediate_size=1000"},
       {"1000", "3"}},
      {2, {"parallelism.tensor_parallel_size=4"}, {"tensor_parallel_size", "2"}},
      {2, {"train.global_batch_size=3"}, {"global_batch_size", "3"}},
  };
  for (const Case& wrong : cases) {
    const Result result = folder.expect_exit(2, {.ranks = wrong.ranks, .sets = wrong.sets});
    EXPECT_TRUE(mentions(result.err, wrong.said));
    EXPECT_EQ(count_of(result.err, "trainer: "), 1) << result.err;
  }
}

TEST(Faults, OfDataEndWithTheirCode) {
  const RunFolder folder;
  const Result missing = folder.expect_exit(3, {.sets = {"data.train=[nowhere.h5]"}});
  EXPECT_TRUE(mentions(missing.err, {"nowhere.h5"}));
  const Result small = folder.expect_exit(3, {.ranks = 2, .sets = {"model.vocab_size=60"}});
  EXPECT_TRUE(mentions(small.err, {"train.h5", "60", "64"}));
  EXPECT_EQ(count_of(small.err, "trainer: "), 1) << small.err;
  const std::string shard = read_file(folder / "train.h5");
  write_file(folder / "short.h5", shard.substr(0, shard.size() / 2));
  EXPECT_TRUE(mentions(folder.expect_exit(3, {.sets = {"data.train=[short.h5]"}}).err, {"short.h5"}));
  const Result tiny = folder.expect_exit(3, {.sets = {"train.seq_length=4000"}});
  EXPECT_TRUE(mentions(tiny.err, {"data.train holds 3201", "4001"}));
  write_shard(folder / "few.h5", learnable_tokens(16, 64), 64);
  const Result few = folder.expect_exit(3, {.sets = {"data.validation=[few.h5]"}});
  EXPECT_TRUE(mentions(few.err, {"data.validation holds 16", "17"}));
  EXPECT_EQ(count_of(few.err, "step"), 0) << "it was found out at the start\n" << few.err;
}

/// Rank 1 is started otherwise than rank 0: `change` is what bash does first there.
Result with_another_rank_1(const RunFolder& folder, const std::string& change, const std::string& command = "") {
  write_file(folder / "rank.sh", fmt::format("B={0}\nif [[ $OMPI_COMM_WORLD_RANK == 1 ]]; then {1}; {2} fi\n"
                                             "exec $B --config config.yaml\n",
                                             TRAINER_BINARY, change, command));
  Job job(folder.path(), fmt::format("exec {}/launch/mpirun.sh -np 2 bash rank.sh", TRAINER_SOURCE_DIR), {});
  Result result = job.wait();
  EXPECT_EQ(count_of("\n" + result.err, "\ntrainer: "), result.exit_code == 0 ? 0 : 1) << result.err;
  EXPECT_TRUE(job.is_gone());
  return result;
}

TEST(Faults, OfRanksThatDiffer) {
  const RunFolder folder;
  const Result command = with_another_rank_1(folder, ":", "exec $B plan --config config.yaml;");
  EXPECT_EQ(command.exit_code, 2);
  EXPECT_TRUE(mentions(command.err, {"rank 1 was started as 'trainer plan'", "rank 0 as 'trainer train'"}));

  std::filesystem::create_directories(folder / "elsewhere");
  const std::string elsewhere = "cd elsewhere";
  EXPECT_EQ(with_another_rank_1(folder, elsewhere).exit_code, 3) << "there are no data";
  write_shard(folder / "elsewhere/train.h5", learnable_tokens(200 * 16 + 1, 32), 64);  // as many tokens, other ones
  const Result data = with_another_rank_1(folder, elsewhere);
  EXPECT_EQ(data.exit_code, 3);
  EXPECT_TRUE(mentions(data.err, {"data.train: rank 1 sees other data than rank 0: 3201 tokens in 1 file, "}));

  std::filesystem::copy_file(folder / "train.h5", folder / "elsewhere/train.h5",
                             std::filesystem::copy_options::overwrite_existing);
  const Result place = with_another_rank_1(folder, elsewhere);
  EXPECT_EQ(place.exit_code, 2);
  EXPECT_TRUE(mentions(place.err, {"train.output_dir 'run', seen from '", "elsewhere", "is not the folder of rank 0"}));

  // Another build: one bit of the linker's hash is another.
  std::string program = read_file(TRAINER_BINARY);
  const std::size_t note = program.find(std::string("\x14\0\0\0\x03\0\0\0GNU\0", 12));
  ASSERT_NE(note, std::string::npos);
  program[note + 12] = static_cast<char>(program[note + 12] ^ 1);
  write_file(folder / "other", program);
  std::filesystem::permissions(folder / "other", std::filesystem::perms::owner_all);
  const Result build = with_another_rank_1(folder, "B=./other");
  EXPECT_EQ(build.exit_code, 2);
  EXPECT_TRUE(mentions(build.err, {"rank 1 (host ", "runs another build of trainer"}));
}

TEST(Faults, OfTwoJobsInOneRunFolder) {
  const RunFolder folder;
  const Start slow{.ranks = 2, .sets = {"train.train_steps=10000"}, .fault = "site=step,action=sleep:0.1"};
  const auto first = folder.start(slow);
  ASSERT_TRUE(wait_until([&] { return !folder.metrics().empty(); }, 30));
  const Result second = folder.expect_exit(2, {.ranks = 2});
  EXPECT_TRUE(mentions(second.err, {"another job writes to 'run' (host ", "train.output_dir"}));
  const Result beside =
      folder.expect_exit(2, {.ranks = 2, .sets = {"checkpoint.save_dir=run/checkpoints"}, .folder = "beside"});
  EXPECT_TRUE(mentions(beside.err, {"another job writes to 'run/checkpoints' (host ", "checkpoint.save_dir"}));
  first->kill_all();
  first->wait();
  folder.expect_exit(0, {.ranks = 2});  // the lock went with its process
}

TEST(Faults, AShardThatIsShortenedWhileItIsReadIsSaid) {
  for (const int ranks : {1, 2}) {
    const RunFolder folder;
    write_shard(folder / "long.h5", learnable_tokens(200'000, 64), 64);
    const std::unique_ptr<Job> job = folder.start({.ranks = ranks,
                                                   .sets = {"data.train=[long.h5]", "train.train_steps=10000"},
                                                   .fault = "site=step,action=sleep:0.01"});
    ASSERT_TRUE(wait_until([&] { return !read_file(folder / "run/metrics.jsonl").empty(); }, 30));
    std::filesystem::resize_file(folder / "long.h5", 5000);
    const Result result = job->wait(30);
    EXPECT_EQ(result.exit_code, 3) << result.err;
    EXPECT_TRUE(mentions(result.err, {"SIGBUS: a mapped data file was shortened"}));
    EXPECT_TRUE(job->is_gone());
  }
}

TEST(Faults, AnIdOutsideTheVocabularyIsNamedWithItsPlace) {
  const RunFolder folder;
  std::string ids;
  for (int i = 0; i < 4 * 16 + 1; ++i) ids += std::string(1, static_cast<char>(i == 37 ? 64 : i % 64)) + '\0';
  write_file(folder / "raw.bin", ids);
  for (const int ranks : {1, 2}) {
    const Result result =
        folder.expect_exit(3, {.ranks = ranks, .sets = {"data.train=[raw.bin]", "data.format=bin_uint16"}});
    EXPECT_TRUE(mentions(result.err, {"raw.bin", "37", "64"}));
    EXPECT_EQ(count_of(result.err, "trainer: "), 1) << result.err;
  }
  std::replace(ids.begin(), ids.end(), '\x40', '\0');  // 64
  write_file(folder / "good.bin", ids);
  const Result later = folder.expect_exit(
      3, {.ranks = 2,
          .sets = {"data.train=[good.bin]", "data.validation=[raw.bin]", "data.format=bin_uint16", "eval.batches=0"}});
  EXPECT_TRUE(mentions(later.err, {"raw.bin: token 37 has id 64"}));
  EXPECT_EQ(count_of(later.err, "step"), 0) << "it was found out at the start\n" << later.err;
}

TEST(Faults, OfPlaces) {
  const RunFolder folder;
  const Result missing = folder.expect_exit(4, {.ranks = 2, .sets = {"checkpoint.load=/nowhere/step_00000001"}});
  EXPECT_TRUE(mentions(missing.err, {"/nowhere/step_00000001"}));
  EXPECT_EQ(count_of(missing.err, "trainer: "), 1) << missing.err;
  const Result unsavable = folder.expect_exit(4, {.ranks = 2, .sets = {"checkpoint.save_dir=train.h5/saved"}});
  EXPECT_TRUE(mentions(unsavable.err, {"checkpoint.save_dir 'train.h5/saved'", "Not a directory"}));
  EXPECT_EQ(count_of(unsavable.err, "step"), 0) << "it was found out at the start\n" << unsavable.err;
  const Result tilde = folder.expect_exit(2, {.sets = {"checkpoint.save_dir=$HOME/saved"}, .folder = "'~/run'"});
  EXPECT_TRUE(mentions(tilde.err, {"train.output_dir: '~/run' is taken as it is",
                                   "no shell replaces what begins with ~", "checkpoint.save_dir: '$HOME/saved'"}));
  // Not by permissions: root may do everything.
  for (const int ranks : {1, 2}) {
    const Result unwritable = folder.expect_exit(2, {.ranks = ranks, .folder = "train.h5/run"});
    EXPECT_TRUE(mentions(unwritable.err, {"train.output_dir", "train.h5/run"}));
    EXPECT_EQ(count_of(unwritable.err, "trainer: "), 1) << unwritable.err;
  }
}

/// /dev/zero never ends, and a pipe keeps whoever opens it waiting.
TEST(Faults, OfWhatLiesInTheRunFolder) {
  const RunFolder folder;
  const auto refused = [&](const std::string& run, int ranks, const std::vector<std::string>& said) {
    const Result result = folder.expect_exit(2, {.ranks = ranks, .folder = run}, 20);
    EXPECT_FALSE(result.timed_out);
    EXPECT_TRUE(mentions(result.err, said));
    EXPECT_EQ(count_of(result.err, "trainer: "), 1) << result.err;
    EXPECT_FALSE(std::filesystem::exists(folder / (run + "/config.resolved.yaml")));
  };
  for (const char* run : {"zero", "pipe", "log"}) std::filesystem::create_directories(folder / run + "/logs");
  std::filesystem::create_symlink("/dev/zero", folder / "zero/metrics.jsonl");
  refused("zero", 1, {"'zero/metrics.jsonl' is a link to '/dev/zero', which is a device; right would be a file"});
  ASSERT_EQ(mkfifo((folder / "pipe/metrics.jsonl").c_str(), 0600), 0);
  refused("pipe", 2, {"'pipe/metrics.jsonl' is a pipe"});
  ASSERT_EQ(mkfifo((folder / "log/logs/rank-0001.log").c_str(), 0600), 0);
  refused("log", 2, {"rank 1 of 2", "'log/logs/rank-0001.log' is a pipe"});
}

TEST(Faults, AModelThatDoesNotFitIsRefusedInTime) {
  const RunFolder folder;
  const Result result = folder.expect_exit(
      5, {.sets = {"model.hidden_size=262144", "model.num_layers=100", "model.intermediate_size=1048576"}});
  EXPECT_TRUE(mentions(result.err, {"weights", "bytes"}));
  EXPECT_LT(result.seconds, 5);
  EXPECT_LT(result.peak_bytes, 256 * kMiB);
}

TEST(Hostile, FilesAreRefusedQuicklyInLittleMemory) {
  const RunFolder folder;
  std::string alias_bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c < 'k'; ++c) {
    alias_bomb += fmt::format("{0}: &{0} [", c);
    for (int i = 0; i < 10; ++i) alias_bomb += fmt::format("{}*{}", i == 0 ? "" : ", ", static_cast<char>(c - 1));
    alias_bomb += "]\n";
  }
  std::string utf16 = "\xff\xfe";
  for (const char c : std::string("train: {seed: 1}\n")) utf16 += std::string(1, c) + '\0';
  const std::map<std::string, std::string> files = {
      {"brace.yaml", "{:"},
      {"bracket.yaml", "[:"},
      {"brackets.yaml", "[[:"},
      {"open.yaml", "{foo:"},
      {"deep.yaml", std::string(100000, '[')},
      {"deep_block.yaml",
       [] {
         std::string text;
         for (int i = 0; i < 2000; ++i) text += std::string(i, ' ') + "a:\n";
         return text;
       }()},
      {"alias.yaml", alias_bomb},
      {"nul.yaml", std::string("train:\n  seed: 1\0\n", 18)},
      {"empty.yaml", ""},
      {"utf16.yaml", utf16},
      {"binary.yaml", read_file(TRAINER_BINARY).substr(0, 1 << 20)},
      {"twice.yaml", "train: {seed: 1}\ntrain: {seed: 2}\n"},
      {"merge.yaml", "base: &b {seed: 3}\ntrain:\n  <<: *b\n"},
  };
  for (const auto& [name, text] : files) {
    write_file(folder / name, text);
    const Result result = folder.command("--config " + name);
    EXPECT_EQ(result.exit_code, 2) << name << "\n" << result.err.substr(0, 1000);
    EXPECT_LT(result.seconds, 2) << name;
    EXPECT_LT(result.peak_bytes, 256 * kMiB) << name;
    EXPECT_TRUE(mentions(result.err, {name}));
    EXPECT_LT(result.err.size(), 20000u) << name;
  }
}

}  // namespace
}  // namespace trainer::launch_test
