#include <charconv>

#include "command.hpp"
#include "layers/operators.hpp"
#include "report/operator_report.hpp"
#include "units/enums.hpp"

namespace oomplan::cli {
namespace {

[[noreturn]] void refuse(const std::string& path, std::string found, std::string expected) {
  throw InputError(Problem{{"", 0, 0, path}, std::move(found), std::move(expected), "", ""});
}

DType format_of(const Call& call, std::string_view option, DType otherwise) {
  if (!call.has(option)) return otherwise;
  for (const DTypeRow& r : kDTypes)
    if (r.name == call.text(option)) return r.value;
  refuse("--" + std::string(option), "'" + std::string(call.text(option)) + "'", "a format such as bf16 or fp32");
}

OperatorPass pass_of(const Call& call) {
  for (const auto pass : {OperatorPass::full, OperatorPass::forward, OperatorPass::backward})
    if (!call.has("pass") || call.text("pass") == name(pass)) return pass;
  refuse("--pass", "'" + std::string(call.text("pass")) + "'", "forward, backward or full");
}

}  // namespace

int run_op(const Call& call) {
  if (call.positional.empty()) {
    print(operators_to_text(call.style));
    return kFits;
  }
  OperatorCall asked;
  asked.name = call.positional[0];
  asked.by = call.text("by");
  asked.dtype = format_of(call, "dtype", DType::bf16);
  asked.weights = format_of(call, "weights", asked.dtype);
  asked.pass = pass_of(call);
  asked.retain_graph = call.has("retain-graph");
  if (call.has("gpu")) asked.gpu = call.text("gpu");
  for (std::size_t i = 1; i < call.positional.size(); ++i) {
    const std::string& word = call.positional[i];
    const auto equals = word.find('=');
    if (equals == std::string::npos) refuse(word, "'" + word + "'", "size=number, such as tokens=4096");
    std::int64_t value = 0;
    const char *first = word.data() + equals + 1, *last = word.data() + word.size();
    if (const auto [end, error] = std::from_chars(first, last, value); error != std::errc{} || end != last)
      refuse(word.substr(0, equals), "'" + word.substr(equals + 1) + "'", "a whole number");
    asked.sizes[word.substr(0, equals)] = value;
  }
  const OperatorAnswer answer = ask(asked, *call.catalog);
  print(call.json ? to_json(answer) : to_text(answer, call.style));
  return kFits;
}

}  // namespace oomplan::cli
