// The model that Megatron's arguments describe.
#pragma once
#include <memory>

#include "catalog/architecture.hpp"
#include "catalog/catalog.hpp"
#include "frontends/megatron/arguments.hpp"
#include "frontends/megatron/run.hpp"

namespace oomplan::megatron {

/// GPTModel as pretrain_gpt.py builds it. Told in Complaints: what is missing, and what is not supported yet.
std::shared_ptr<const Architecture> model_of(const Arguments&, const Run&, const Catalog&, Complaints&);
/// A model of the catalog with the rates of dropout that the arguments say; arguments of its shape that say otherwise are told.
std::shared_ptr<const Architecture> named_model(const std::string& name, const Arguments&, const Catalog&, Complaints&);

}  // namespace oomplan::megatron
