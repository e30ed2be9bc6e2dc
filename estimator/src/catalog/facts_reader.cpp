#include "catalog/facts_reader.hpp"

#include <array>
#include <utility>

#include <oomplan/units/errors.hpp>

#include "catalog/fields.hpp"
#include "units/enums.hpp"

namespace oomplan {
namespace {

constexpr double kLargestValue = 1e18;

double value_of(const Fields& row) {
  if (row.is_flag("value")) return row.flag("value") ? 1 : 0;
  return row.number("value", -kLargestValue, kLargestValue);
}

FactKind kind_of(const Fields& row) {
  const std::string text = row.text("kind");
  const auto kind = parse<FactKind>(text);
  const auto valid = spellings<FactKind>();
  if (!kind) row.refuse("kind", list_of(valid), "", nearest(text, valid));
  return *kind;
}

std::map<std::string, std::string> conditions_of(const Fields& row) {
  std::map<std::string, std::string> out;
  const auto when = row.object_if("when");
  if (!when) return out;
  for (const std::string& key : when->keys()) {
    const std::string condition = when->scalar_text(key);
    if (!is_condition(condition)) when->refuse(key, "a word or a comparison such as '>=2' or '>=2,<8'");
    out[key] = condition;
  }
  return out;
}

Fact read_fact(const Fields& row, const std::string& engine) {
  row.only({"fact", "versions", "gpu", "when", "value", "spread", "measurements", "source", "kind"});
  Fact fact;
  fact.engine = engine;
  fact.fact = row.text("fact");
  fact.versions = row.text_or("versions", "");
  if (!is_version_range(fact.versions)) row.refuse("versions", "a range such as '>=0.11,<0.21'");
  if (row.has("gpu")) fact.gpus = row.texts("gpu");
  fact.when = conditions_of(row);
  fact.value = value_of(row);
  fact.spread = row.number_or("spread", 0, 0, kLargestValue);
  fact.measurements = static_cast<int>(row.integer_or("measurements", 0, {0, 1'000'000}));
  fact.source = row.text("source");
  if (fact.source.empty()) row.refuse("source", "where the value was read or measured");
  fact.kind = kind_of(row);
  return fact;
}

}  // namespace

std::vector<Fact> read_facts(std::string_view text, const std::string& file) {
  const Fields outer = Fields::parse(text, file);
  outer.only({"engine", "facts"});
  const std::string engine = outer.text("engine");
  std::vector<Fact> out;
  for (const Fields& row : outer.objects("facts")) out.push_back(read_fact(row, engine));
  return out;
}

}  // namespace oomplan
