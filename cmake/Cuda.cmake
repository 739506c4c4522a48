# The CUDA compiler and libraries; included only where a toolkit was found. Device code is C++17, so that CUDA 11.8 compiles it
# for Volta. cuBLASLt and cuDNN are linked directly, with an RPATH; cudart statically, so that a machine without a driver starts.
set(TRAINER_CUDA_ARCHITECTURES "" CACHE STRING "Cards to compile for, as compute capability x 10 (default: 80;90, or 70;80;90 before CUDA 13)")
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  if(TRAINER_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${TRAINER_CUDA_ARCHITECTURES})
  elseif(CUDAToolkit_VERSION VERSION_LESS 13)
    set(CMAKE_CUDA_ARCHITECTURES 70 80 90)
  else()
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
  endif()
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

find_program(TRAINER_CCACHE ccache)
if(TRAINER_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${TRAINER_CCACHE})
endif()

# cuDNN and its header-only frontend (launch/install.sh brings the latter) give the fast attention; without them all attention is our own.
find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${CMAKE_SOURCE_DIR}/.deps/cudnn-frontend/include ${CUDAToolkit_INCLUDE_DIRS})
add_library(trainer_cudnn INTERFACE)
set(TRAINER_HAS_CUDNN OFF)
set(TRAINER_CUDNN_TEXT "without cuDNN")
if(CUDNN_INCLUDE AND CUDNN_LIBRARY AND CUDNN_FRONTEND_INCLUDE)
  set(TRAINER_HAS_CUDNN ON)
  set(TRAINER_CUDNN_TEXT "with cuDNN")
  target_include_directories(trainer_cudnn SYSTEM INTERFACE ${CUDNN_INCLUDE} ${CUDNN_FRONTEND_INCLUDE})
  target_link_libraries(trainer_cudnn INTERFACE ${CUDNN_LIBRARY} CUDA::nvrtc)  # the frontend compiles some of its engines
endif()

add_library(trainer_cuda_flags INTERFACE)
target_compile_options(trainer_cuda_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra -Wno-deprecated-gpu-targets
                       $<$<BOOL:${TRAINER_WARNINGS_AS_ERRORS}>:-Werror=all-warnings>>)
