#include <cstdio>

#include <fmt/format.h>

#include "catalog/catalog.hpp"
#include "catalog/parameters.hpp"
#include "command.hpp"
#include "report/format.hpp"
#include "report/model_card.hpp"
#include "units/enums.hpp"

namespace oomplan::cli {
namespace {

std::string parameter_table(const Architecture& architecture, bool colour) {
  using Align = Table::Align;
  Table table({Align::right, Align::right, Align::left, Align::left});
  const auto head = [](const char* text) { return Table::Cell(text, Colour::dim); };
  table.row({head("elements"), head("times"), head("shape"), head("tensor")});
  for (const auto& parameter : parameters(architecture)) {
    std::string shape;
    for (const auto n : parameter.shape) shape += (shape.empty() ? "" : " x ") + std::to_string(n);
    table.row({grouped(parameter.total()), grouped(parameter.copies * parameter.layers), shape, printable(parameter.name)});
  }
  return "\n" + table.text(0, colour);
}

}  // namespace

int run_model(const Call& call) {
  if (call.positional.empty()) {
    Problem problem;
    problem.found = "no model";
    problem.expected = "an alias, a hub id, a folder or a config.json, as in oomplan model qwen2.5-7b";
    throw InputError(problem);
  }
  const ModelFound found = call.catalog->model(call.positional[0]);
  if (!found.also.empty())
    std::fprintf(stderr, "'%s' is taken as %s; it could also mean %s\n", printable(call.positional[0]).c_str(),
                 printable(found.id).c_str(), printable(list_of(found.also)).c_str());
  const bool all = call.has("parameters");
  if (call.json) {
    print(model_card_json(*found.architecture, all));
  } else {
    print(model_card_text(*found.architecture, call.style.colour) +
          (all ? parameter_table(*found.architecture, call.style.colour) : ""));
  }
  return kFits;
}

}  // namespace oomplan::cli
