// The parts that the module is put together from; module.cpp calls each once.
#pragma once

#include <nanobind/nanobind.h>

namespace expertree {

class Model;

// What of a model is on a device, and what it did there; None: nothing is.
nanobind::object device_use(const Model& model);

void bind_gguf(nanobind::module_& m);
void bind_device(nanobind::module_& m);
void bind_engine(nanobind::module_& m);
void bind_joint_step(nanobind::module_& m);
void bind_merge_experts(nanobind::module_& m);
void bind_expert_pager(nanobind::module_& m);
void bind_profile(nanobind::module_& m);
void bind_pager(nanobind::module_& m);
void bind_replay(nanobind::module_& m);
void bind_speculation(nanobind::module_& m);
void bind_testing_dense(nanobind::module_& m);
void bind_testing_device(nanobind::module_& m);
void bind_testing_drafters(nanobind::module_& m);
void bind_testing_io(nanobind::module_& m);
void bind_testing_kernels(nanobind::module_& m);
void bind_testing_pager(nanobind::module_& m);
void bind_testing_recurrent(nanobind::module_& m);
void bind_testing_sample(nanobind::module_& m);
void bind_testing_spec(nanobind::module_& m);
void bind_testing_spec_prices(nanobind::module_& m);
void bind_testing_tensor(nanobind::module_& m);
void bind_testing_threads(nanobind::module_& m);

}  // namespace expertree
