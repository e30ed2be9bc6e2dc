// Commands that start a generation server, as jobs.
#pragma once
#include <span>

#include "catalog/catalog.hpp"
#include "frontends/handing.hpp"

namespace oomplan::servers {

std::span<const launch::EntryPoint> entry_points();
/// The command as read_server takes it.
Source take(Handing&);
/// A job of one role, "server". Source::text: the words as a shell would be given them. Throws InputError.
Reading read_server(const Source&, const Catalog&);

}  // namespace oomplan::servers
