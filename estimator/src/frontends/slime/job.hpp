// The Job that a command of slime, or of its family, says.
#pragma once
#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"
#include "frontends/slime/family.hpp"

namespace oomplan::slime {

/// Throws InputError with all that is wrong or not supported yet, in the words of the command.
Reading read_job(const Family&, const Source&, const Catalog&);

}  // namespace oomplan::slime
