#include "kernels/nvtx.h"

#include <nvtx3/nvToolsExt.h>

namespace trainer::nvtx {
namespace {

nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t made = nvtxDomainCreateA("trainer");
  return made;
}

}  // namespace

void push(const char* name, std::int64_t index) {
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = name;
  if (index >= 0) {
    range.payloadType = NVTX_PAYLOAD_TYPE_INT64;
    range.payload.llValue = index;
  }
  nvtxDomainRangePushEx(domain(), &range);
}

void pop() {
  nvtxDomainRangePop(domain());
}

}  // namespace trainer::nvtx
