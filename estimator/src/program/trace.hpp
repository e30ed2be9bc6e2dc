// trace() of a program that is expanded already.
#pragma once
#include "program/events.hpp"

namespace oomplan {

/// As trace(program). REQUIRES: the events are the program's.
Trace trace(const Program&, const Events&);

}  // namespace oomplan
