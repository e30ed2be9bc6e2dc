#include <doctest/doctest.h>

#include "units/sizes.hpp"

using namespace oomplan;

TEST_CASE("counts: k is 1024, digits may be grouped") {
  CHECK(*read_count("16384").value == 16384);
  CHECK(*read_count("16k").value == 16384);
  CHECK(*read_count(" 16 K ").value == 16384);
  CHECK(*read_count("16_384").value == 16384);
  CHECK(*read_count("1.5k").value == 1536);
  CHECK(*read_count("1m").value == 1048576);
  CHECK(*read_count("0").value == 0);
}

TEST_CASE("counts: what has no single meaning is refused, with the reason") {
  for (const char* text : {"",
                           " ",
                           "-1",
                           "1.5",
                           "010",
                           "0_1",
                           "1:30",
                           "1e5",
                           "10^30",
                           "10**3",
                           "0x10",
                           ".nan",
                           "nan",
                           ".inf",
                           "inf",
                           "16KiB",
                           "16kk",
                           "1__0",
                           "_1",
                           "1_",
                           "99999999999999999999",
                           "9007199254740993m",
                           "k",
                           "1,000",
                           "1/2",
                           "½"}) {
    CAPTURE(text);
    const auto said = read_count(text);
    CHECK(!said);
    CHECK(!said.why.empty());
  }
}

TEST_CASE("bytes: binary and decimal units, and never without one") {
  CHECK(*read_bytes("1GiB").value == 1073741824);
  CHECK(*read_bytes("512 MiB").value == 536870912);
  CHECK(*read_bytes("80GB").value == 80'000'000'000);
  CHECK(*read_bytes("1.5KiB").value == 1536);
  CHECK(*read_bytes("7B").value == 7);
  CHECK(*read_bytes("0").value == 0);
  CHECK(*read_bytes("0.1GiB").value == 107374182);  // 107374182.4, rounded down
  for (const char* text : {"1024", "1Gb", "1gib", "-1GiB", "1e3GiB", "99999999999TiB", "GiB", "nanGiB", "1.1234567GiB", "1k"}) {
    CAPTURE(text);
    CHECK(!read_bytes(text));
    CHECK(!read_bytes(text).why.empty());
  }
}

TEST_CASE("numbers are finite and decimal") {
  CHECK(*read_number("0.85").value == 0.85);
  CHECK(*read_number(".5").value == 0.5);
  CHECK(*read_number("1e-1").value == 0.1);
  CHECK(*read_number("-2").value == -2);
  for (const char* text : {"", "nan", ".nan", "inf", "-inf", "infinity", "0x1p3", "80%", "1.2.3", "1e999", "--1", "abc"}) {
    CAPTURE(text);
    CHECK(!read_number(text));
  }
}

TEST_CASE("flags: the words of YAML 1.1 that PyYAML takes, and no others") {
  for (const char* text : {"true", "True", "TRUE", "yes", "on", "ON"}) CHECK(*read_flag(text).value);
  for (const char* text : {"false", "no", "Off", "NO"}) CHECK_FALSE(*read_flag(text).value);
  for (const char* text : {"y", "n", "1", "0", "tRue", ""}) CHECK(!read_flag(text));
}

TEST_CASE("printed sizes read back, and people get two digits") {
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1000}, std::int64_t{1024}, std::int64_t{16384},
                               kMiB, kGiB, 3 * kMiB, kGiB + 1, std::int64_t{1} << 50, (std::int64_t{1} << 50) - 1}) {
    CAPTURE(n);
    CHECK(*read_bytes(exact_bytes_text(n)).value == n);
    CHECK(*read_count(count_text(n)).value == n);
  }
  CHECK(bytes_text(80443000000) == "74.92 GiB");
  CHECK(bytes_text(512 * kMiB) == "512.00 MiB");
  CHECK(bytes_text(1536) == "1.50 KiB");
  CHECK(bytes_text(17) == "17 B");
  CHECK(bytes_text(0) == "0 B");
  CHECK(bytes_text(-kGiB) == "-1.00 GiB");
  CHECK(exact_bytes_text(1537 * kMiB) == "1537MiB");
  CHECK(count_text(10000) == "10000");
  CHECK(number_text(0.8) == "0.8");
}
