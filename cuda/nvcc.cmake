# libexpertree_cuda.so: nvcc for the kernels, the host compiler for the rest, the CUDA runtime linked in. Nothing links
# the driver: the runtime looks for it when it is used, so that the library loads, and says "no driver", on any machine.

set(EXPERTREE_CUDA_TARGETS "" CACHE STRING
  "Compute capabilities to build for (75;86), all, or native; empty for native with EXPERTREE_CUDA=AUTO and all with ON")
set(CUDA_ALL_TARGETS 75 80 86 89 90 100 120)

# nvcc may be a link or a script: it is asked where its toolkit is.
execute_process(COMMAND ${EXPERTREE_NVCC} -dryrun -x cu -c /dev/null ERROR_VARIABLE dry_run OUTPUT_QUIET)
string(REGEX MATCH "TOP=([^\n]*)" ignored "${dry_run}")
get_filename_component(CUDA_ROOT "${CMAKE_MATCH_1}" REALPATH)
find_path(CUDA_INCLUDE cuda_runtime.h PATHS ${CUDA_ROOT}/include ${CUDA_ROOT}/targets/x86_64-linux/include
  NO_DEFAULT_PATH REQUIRED)
find_library(CUDART_STATIC cudart_static PATHS ${CUDA_ROOT}/lib64 ${CUDA_ROOT}/lib ${CUDA_ROOT}/targets/x86_64-linux/lib
  NO_DEFAULT_PATH REQUIRED)

# Kernels use nothing that came after compute capability 8.0: one translation to PTX serves every later device, which
# halves the time (docs/decisions.md), and it is kept for devices to come.
set(wanted "${EXPERTREE_CUDA_TARGETS}")
if(wanted STREQUAL "" AND EXPERTREE_CUDA STREQUAL "AUTO")
  set(wanted native)
endif()
if(wanted STREQUAL "" OR wanted STREQUAL "all")
  set(wanted ${CUDA_ALL_TARGETS})
endif()
set(NVCC_TARGETS "")
if(wanted STREQUAL "native")
  set(NVCC_TARGETS -arch=native)
else()
  set(later "")
  foreach(target ${wanted})
    if(target LESS 80)
      list(APPEND NVCC_TARGETS -gencode "arch=compute_${target},code=sm_${target}")
    else()
      string(APPEND later "sm_${target},")
    endif()
  endforeach()
  if(later)
    list(APPEND NVCC_TARGETS -gencode "arch=compute_80,code=[${later}compute_80]")
  endif()
endif()
message(STATUS "CUDA: ${EXPERTREE_NVCC} for ${wanted}")

set(NVCC_FLAGS -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -cudart static -I${CMAKE_SOURCE_DIR}
  -Xcompiler=-fPIC,-fvisibility=hidden,-ffp-contract=off -Xptxas=-v ${NVCC_TARGETS})
# Compiles .cu sources; what ptxas says of registers and spills stays beside each object (tools/check_cuda_build.py).
function(nvcc_objects variable)
  set(objects "")
  foreach(source ${ARGN})
    file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR} ${source})
    string(REPLACE "/" "_" name ${name})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/nvcc/${name}.o)
    add_custom_command(OUTPUT ${object} BYPRODUCTS ${object}.ptxas DEPFILE ${object}.d DEPENDS ${source} VERBATIM
      COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/compile_kernel.sh ${object}.ptxas
        ${EXPERTREE_NVCC} ${NVCC_FLAGS} -MD -MF ${object}.d -c ${source} -o ${object}
      COMMENT "Compiling ${name} with nvcc")
    list(APPEND objects ${object})
  endforeach()
  set(${variable} ${objects} PARENT_SCOPE)
endfunction()
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/nvcc)

add_library(cuda_runtime_api INTERFACE)
target_include_directories(cuda_runtime_api INTERFACE ${CMAKE_SOURCE_DIR})
target_include_directories(cuda_runtime_api SYSTEM INTERFACE ${CUDA_INCLUDE})
target_compile_options(cuda_runtime_api INTERFACE -ffp-contract=off -Wall -Wextra -Wno-unused-parameter)
target_link_libraries(cuda_runtime_api INTERFACE ${CUDART_STATIC} Threads::Threads ${CMAKE_DL_LIBS} rt)

add_library(cuda_host_objects OBJECT ${CUDA_HOST_SOURCES})
target_link_libraries(cuda_host_objects PRIVATE cuda_runtime_api)
nvcc_objects(CUDA_KERNEL_OBJECTS ${CUDA_KERNEL_SOURCES})
add_library(expertree_cuda SHARED ${CUDA_KERNEL_OBJECTS} $<TARGET_OBJECTS:cuda_host_objects>)
set_target_properties(expertree_cuda PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(expertree_cuda PRIVATE cuda_runtime_api)
target_link_options(expertree_cuda PRIVATE -Wl,--no-undefined -Wl,--exclude-libs,ALL)
install(TARGETS expertree_cuda LIBRARY DESTINATION expertree)

# The tests' library for a device, and the program that makes every call where there may be none.
set(test_kernels ${CUDA_TEST_SOURCES})
list(FILTER test_kernels INCLUDE REGEX "\\.cu$")
set(test_hosts ${CUDA_TEST_SOURCES})
list(FILTER test_hosts INCLUDE REGEX "\\.cpp$")
nvcc_objects(CUDA_TEST_OBJECTS ${test_kernels})
add_library(expertree_cuda_tests_gpu SHARED EXCLUDE_FROM_ALL ${test_hosts} ${CUDA_TEST_OBJECTS} ${CUDA_KERNEL_OBJECTS}
  $<TARGET_OBJECTS:cuda_host_objects>)
target_link_libraries(expertree_cuda_tests_gpu PRIVATE cuda_runtime_api)
target_link_options(expertree_cuda_tests_gpu PRIVATE -Wl,--exclude-libs,ALL)
nvcc_objects(CUDA_SMOKE_OBJECTS ${CMAKE_SOURCE_DIR}/tests/cuda/planted_bugs.cu)
add_executable(expertree_cuda_smoke EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/tests/cuda/no_driver_main.cpp
  ${CUDA_SMOKE_OBJECTS})
target_link_libraries(expertree_cuda_smoke PRIVATE cuda_runtime_api)
