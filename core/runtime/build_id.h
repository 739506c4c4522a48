// Which build of the program this is.
#pragma once
#include <string>

namespace trainer {

/// The linker's hash of the program, in hexadecimal digits: other code, other number. Empty when there is none.
std::string build_id();

}  // namespace trainer
