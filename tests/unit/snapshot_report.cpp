// What is told of a snapshot, against files in tests/golden and against sums done by hand. OOMPLAN_UPDATE_GOLDEN=1 writes the
// files.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

#include "report/snapshot_report.hpp"
#include "snapshot/read.hpp"
#include "snapshot/write.hpp"
#include "snapshot_example.hpp"

using namespace oomplan;
using namespace oomplan::snapshot;

namespace {

void check_golden(const std::string& name, const std::string& text) {
  const std::string path = std::string(OOMPLAN_SOURCE_DIR) + "/tests/golden/" + name;
  if (std::getenv("OOMPLAN_UPDATE_GOLDEN") != nullptr) std::ofstream(path, std::ios::binary) << text;
  std::ostringstream expected;
  expected << std::ifstream(path, std::ios::binary).rdbuf();
  INFO(path);
  CHECK(expected.str() == text);
}

SnapshotReport report_of(Snapshot snapshot) {
  SnapshotReport report;
  report.file = "memory_snapshot.pickle";
  report.snapshot = std::move(snapshot);
  for (const int device : report.snapshot.devices()) report.devices.push_back(history_of(report.snapshot, device));
  report.replay = true;
  return report;
}

std::string refusal(const std::string& bytes) {
  try {
    parse_snapshot(bytes, "s.pickle");
    return "";
  } catch (const InputError& error) {
    return to_text(error.problems.at(0));
  }
}

}  // namespace

TEST_CASE("a snapshot's levels, by hand") {
  const auto report = report_of(parse_snapshot(to_pickle(example()), "s.pickle"));
  REQUIRE(report.devices.size() == 2);
  const auto& d = report.devices[0];
  CHECK(d.now.reserved == (256 + 512 + 20 + 64) * kMiB);
  CHECK(d.now.allocated == (512 + 8 + 64) * kMiB + 512);
  CHECK(d.now.releasable == 256 * kMiB);
  CHECK(d.now.inactive_split == 12 * kMiB - 512);
  CHECK(d.now.largest_free == 256 * kMiB);
  // All at once: 64 weights, 2 from before, 512 and 256 of activations, the workspace.
  CHECK(d.allocated_peak.allocated == (64 + 2 + 512 + 256 + 8) * kMiB + 512);
  CHECK(d.allocated_peak.event == 4);
  CHECK(d.reserved_peak.reserved == 852 * kMiB);
  REQUIRE(d.ooms.size() == 1);
  CHECK(d.ooms[0].limit() == 1152 * kMiB);
  CHECK(telling_frame(report.snapshot, d.ooms[0].stack)->file == "/home/me/job/model.py");
  CHECK(d.comparison.difference == "");
  CHECK(d.comparison.placed_equal == 3);
  CHECK(d.comparison.ooms == 1);
  CHECK(report.devices[1].events == 0);
  CHECK(report.devices[1].now.inactive_split == 2 * kMiB - 512);
}

TEST_CASE("what is told of a snapshot") {
  const auto report = report_of(example());
  check_golden("snapshot.txt", to_text(report, {}));
  check_golden("snapshot.json", to_json(report));
}

TEST_CASE("a snapshot as JSON reads like the pickle") {
  const std::string json =
      R"({"segments": [{"device": 0, "address": 4096, "total_size": 1024, "stream": 0, "segment_type": "small", "blocks": [
         {"size": 512, "requested_size": 4, "state": "active_allocated",
          "history": [{"addr": 4096, "real_size": 4, "frames": [{"filename": "a.py", "name": "f", "line": 3}]}]},
         {"size": 512, "requested_size": 0, "state": "inactive"}]}],
         "device_traces": [[]], "unknown": [1.5, null, true, 18446744073709551615]})";
  const auto s = parse_snapshot(json, "s.json");
  REQUIRE(s.segments.size() == 1);
  CHECK(s.segments[0].blocks[1].address == 4608);  // torch 2.0 writes no addresses of blocks
  CHECK(telling_frame(s, s.segments[0].blocks[0].stack)->line == 3);
  CHECK(refusal("{\"segments\": [").find("no JSON at byte") != std::string::npos);
}

TEST_CASE("what is no snapshot is refused with the reason") {
  CHECK(refusal("").find("an empty file") != std::string::npos);
  CHECK(refusal("].").find("a list without segments and device_traces") != std::string::npos);
  CHECK(refusal(R"({"segments": 3})").find("segments: found an integer") != std::string::npos);
  CHECK(refusal(R"({"segments": [[]]})").find("segments: found a list") != std::string::npos);
  CHECK(refusal(R"({"segments": [{"total_size": -5}]})").find("total_size: found -5") != std::string::npos);
  CHECK(refusal(R"({"segments": [{"total_size": 512, "blocks": []}]})").find("0 bytes of blocks in a segment of 512") !=
        std::string::npos);
  CHECK(refusal(R"({"segments": [{"address": 0, "total_size": 512, "blocks": [{"address": 512, "size": 512}]}]})")
            .find("a block at 512 where the one before ends at 0") != std::string::npos);
  CHECK(refusal(R"({"device_traces": [{}]})").find("device_traces: found a dict") != std::string::npos);
  // A thousand segments that are one list, again and again: a small file, and no end of work.
  std::string bomb = "}(X\x08";
  bomb += std::string("\0\0\0segments](", 13) + "}(X\x06" + std::string("\0\0\0blocks", 9) + "](";
  for (int i = 0; i < 1000; ++i) bomb += i == 0 ? "}q\x01" : "h\x01";
  bomb += "euq\x02";
  for (int i = 0; i < 1000; ++i) bomb += "h\x02";
  CHECK(refusal(bomb + "eu.").find("more rows than values") != std::string::npos);
}

TEST_CASE("any bytes are a snapshot that can be told, or a refusal") {
  const std::string good = to_pickle(example());
  std::mt19937 random(11);
  int told = 0, refused = 0;
  for (int turn = 0; turn < 20'000; ++turn) {
    std::string bytes = good;
    for (auto changes = 1 + random() % 3; changes > 0; --changes) {
      auto& byte = bytes[random() % bytes.size()];
      byte = random() % 2 == 0 ? static_cast<char>(random()) : static_cast<char>(byte ^ (1 << random() % 8));
    }
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    try {
      const auto report = report_of(parse_snapshot(bytes, "s.pickle"));
      REQUIRE(to_text(report, {}).size() > 10);
      REQUIRE(to_json(report).size() > 10);
      ++told;
    } catch (const InputError&) {
      ++refused;
    }
  }
  CHECK(told > 1'000);
  CHECK(refused > 5'000);
}
