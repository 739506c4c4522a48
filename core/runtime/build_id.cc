#include "core/runtime/build_id.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstring>

namespace trainer {
namespace {

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + 3) / 4 * 4;
}

/// Looks for the note in one loaded object; the program itself comes first, and is the only one that is asked.
int read_note(dl_phdr_info* object, std::size_t /*size*/, void* result) {
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader gives addresses as numbers
    const char* note = reinterpret_cast<const char*>(object->dlpi_addr + segment.p_vaddr);
    const char* end = note + segment.p_memsz;
    while (note + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) header;
      std::memcpy(&header, note, sizeof header);
      const char* name = note + sizeof header;
      const char* bytes = name + aligned(header.n_namesz);
      if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0)
        for (std::size_t b = 0; b < header.n_descsz; ++b)
          *static_cast<std::string*>(result) += fmt::format("{:02x}", static_cast<unsigned char>(bytes[b]));
      note = bytes + aligned(header.n_descsz);
    }
  }
  return 1;
}

}  // namespace

std::string build_id() {
  std::string id;
  dl_iterate_phdr(read_note, &id);
  return id;
}

}  // namespace trainer
