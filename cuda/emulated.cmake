# The emulation and what is built on it: the plug-in, the tests' library and the program of planted bugs, the last two
# also under AddressSanitizer and ThreadSanitizer (built when asked for: tools/run_emulated.sh), the library also with
# its accesses counted (tools/kernel_bytes.py).

# Never instrumented: it tells the sanitizers what it does (emulation/sanitizer_hooks.h).
file(GLOB EMULATION_SOURCES CONFIGURE_DEPENDS emulation/*.cpp)
list(FILTER EMULATION_SOURCES EXCLUDE REGEX "(c_controls|byte_counts).cpp$")
function(add_emulation name)
  add_library(${name} STATIC ${ARGN} ${EMULATION_SOURCES})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/emulation/include)
  target_compile_options(${name} PRIVATE -O2 -ffp-contract=off -Wall -Wextra)
  # Most of what a file takes to compile is the library's headers.
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  target_link_libraries(${name} PUBLIC Threads::Threads)
endfunction()
add_emulation(expertree_cuda_emulation)
# With the switch that CPUs other than x86-64 use.
add_emulation(expertree_cuda_emulation_ucontext EXCLUDE_FROM_ALL)
target_compile_definitions(expertree_cuda_emulation_ucontext PRIVATE EXPERTREE_EMU_UCONTEXT)
add_executable(expertree_cuda_bugs_ucontext EXCLUDE_FROM_ALL ${CUDA_BUG_SOURCES})
target_link_libraries(expertree_cuda_bugs_ucontext PRIVATE expertree_cuda_emulation_ucontext)

# Kernels multiply and add in one rounding where they say so: with the CPU's instruction where there is one.
set(EMULATED_CPU_FLAGS "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo cpu_with_fma REGEX "^flags.* fma .* avx2 " LIMIT_COUNT 1)
  if(cpu_with_fma)
    set(EMULATED_CPU_FLAGS -mfma -mavx2)
  endif()
endif()

# Interface target emulated_<variant>: how kernels, host code and tests are compiled.
function(add_emulated_flags variant)
  add_library(emulated_${variant} INTERFACE)
  target_link_libraries(emulated_${variant} INTERFACE expertree_cuda_emulation)
  target_compile_definitions(emulated_${variant} INTERFACE EXPERTREE_CUDA_EMULATED)
  target_compile_options(emulated_${variant} INTERFACE -ffp-contract=off -fno-strict-aliasing -fwrapv
    -Wall -Wextra -Wno-unused-parameter -Wno-unknown-pragmas ${EMULATED_CPU_FLAGS} ${ARGN})
  target_link_options(emulated_${variant} INTERFACE ${ARGN})
endfunction()
set(sanitize "")
if(EXPERTREE_SANITIZE)
  set(sanitize -fsanitize=${EXPERTREE_SANITIZE} -fno-omit-frame-pointer -g)
endif()
add_emulated_flags(plain ${sanitize})
add_emulated_flags(asan -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g)
add_emulated_flags(tsan -fsanitize=thread -g)
add_emulated_flags(count)

set_source_files_properties(${CUDA_KERNEL_SOURCES} ${CUDA_TEST_SOURCES} ${CUDA_BUG_SOURCES} ${CUDA_COUNTED_SOURCES}
  PROPERTIES LANGUAGE CXX)
foreach(source ${CUDA_KERNEL_SOURCES} ${CUDA_TEST_SOURCES} ${CUDA_BUG_SOURCES} ${CUDA_COUNTED_SOURCES})
  if(source MATCHES "\\.cu$")
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-x;c++")
  endif()
endforeach()

foreach(variant plain asan tsan)
  set(suffix _${variant})
  set(when EXCLUDE_FROM_ALL)
  set(optimise -O1)  # instrumented code takes long to optimise
  if(variant STREQUAL plain)
    set(suffix "")
    set(when "")
    set(optimise -O2)
  endif()
  add_library(cuda_objects_${variant} OBJECT ${when} ${CUDA_KERNEL_SOURCES} ${CUDA_HOST_SOURCES} emulation/c_controls.cpp)
  target_link_libraries(cuda_objects_${variant} PRIVATE emulated_${variant})
  target_compile_options(cuda_objects_${variant} PRIVATE ${optimise})

  add_library(expertree_cuda_tests${suffix} SHARED ${when} ${CUDA_TEST_SOURCES} $<TARGET_OBJECTS:cuda_objects_${variant}>)
  target_link_libraries(expertree_cuda_tests${suffix} PRIVATE emulated_${variant})
  target_compile_options(expertree_cuda_tests${suffix} PRIVATE ${optimise})

  foreach(program bugs checks)
    string(TOUPPER ${program} sources)
    string(REGEX REPLACE "S$" "" sources ${sources})
    add_executable(expertree_cuda_${program}${suffix} ${when} ${CUDA_${sources}_SOURCES})
    target_link_libraries(expertree_cuda_${program}${suffix} PRIVATE emulated_${variant})
    target_compile_options(expertree_cuda_${program}${suffix} PRIVATE -O0)
  endforeach()

  foreach(trace ${CUDA_TRACES})
    add_executable(expertree_cuda_${trace}${suffix} EXCLUDE_FROM_ALL ${CUDA_${trace}_SOURCES}
      $<TARGET_OBJECTS:cuda_objects_${variant}>)
    target_link_libraries(expertree_cuda_${trace}${suffix} PRIVATE emulated_${variant})
    target_compile_options(expertree_cuda_${trace}${suffix} PRIVATE -O0)
  endforeach()
endforeach()

# The tests' library with these kernels' accesses to device memory counted, the others as they are. Counted kernels call
# byte_counts.cpp where ThreadSanitizer's calls would; its runtime is not linked. Structs stay whole, and nothing is
# vectorised, so that an access is as wide as it is written.
function(add_counting_library name)
  add_library(cuda_objects_${name} OBJECT EXCLUDE_FROM_ALL ${ARGN})
  target_link_libraries(cuda_objects_${name} PRIVATE emulated_count)
  target_compile_options(cuda_objects_${name} PRIVATE -O1 -fno-tree-sra -fsanitize=thread)
  set(others $<TARGET_OBJECTS:cuda_objects_plain>)
  foreach(source ${ARGN})
    get_filename_component(file ${source} NAME)
    set(others $<FILTER:${others},EXCLUDE,/${file}\\.o$>)
  endforeach()
  add_library(${name} SHARED EXCLUDE_FROM_ALL emulation/byte_counts.cpp $<TARGET_OBJECTS:cuda_objects_${name}> ${others}
    $<TARGET_OBJECTS:expertree_cuda_tests>)
  target_link_libraries(${name} PRIVATE emulated_count)
  target_link_options(${name} PRIVATE -Wl,--no-undefined -Wl,--wrap=memcpy -Wl,--wrap=memset)
endfunction()
add_counting_library(expertree_cuda_tests_count ${CUDA_KERNEL_SOURCES})
# What tests/cuda/test_byte_counts.py counts.
set(CUDA_RECKONED_KERNELS elementwise.cu rms_norm.cu product_q8_0.cu)
list(TRANSFORM CUDA_RECKONED_KERNELS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/kernels/)
add_counting_library(expertree_cuda_tests_count_few ${CUDA_COUNTED_SOURCES} ${CUDA_RECKONED_KERNELS})

add_library(expertree_cuda_emulated SHARED $<TARGET_OBJECTS:cuda_objects_plain>)
target_link_libraries(expertree_cuda_emulated PRIVATE emulated_plain)
target_link_options(expertree_cuda_emulated PRIVATE -Wl,--no-undefined)
install(TARGETS expertree_cuda_emulated LIBRARY DESTINATION expertree)
