// Checks of the emulated runtime by name, for runtime_checks_main.cpp. Internal to that program.
#pragma once

#include <functional>
#include <string>
#include <vector>

struct RuntimeCheck {
  std::string name;
  std::function<void()> run;
};

std::vector<RuntimeCheck> runtime_checks();
std::vector<RuntimeCheck> graph_checks();

void note_failure(const char* file, int line, const std::string& text);

#define CHECK(condition) \
  if (!(condition)) note_failure(__FILE__, __LINE__, #condition)
#define CHECK_ERROR(call, expected)                          \
  if (const cudaError_t found = (call); found != (expected)) \
  note_failure(__FILE__, __LINE__, #call " gives " + std::string(cudaGetErrorName(found)) + ", not " #expected)
