// The C border. Each function validates, plans, checks the workspace and launches, and leaves the calling thread's
// message in order.
#include "append/append.h"
#include "backward/backward.h"
#include "combine/combine.h"
#include "device/modules.h"
#include "error.h"
#include "forward/forward.h"
#include "info.h"
#include "quantize/quantize.h"
#include "rules/tensor.h"

using namespace fa3;

namespace {

fa3_status prepare(const fa3_forward_params* params, Rules rules, ForwardProblem& problem, Fit& fit) {
  if (fa3_status status = validate(params, rules, problem)) return status;
  return fa3::fit(problem, fit);
}

// A refusal has left its message; success clears the one before.
fa3_status finish(fa3_status status) { return status ? status : succeed(); }

// For questions: what fa3_forward would do on a device of so many multiprocessors (0: on the current context's).
fa3_status plan(const fa3_forward_params* params, int& multiprocessors, const ForwardPlan*& plan) {
  ForwardProblem problem;
  Fit fit;
  Card card;
  if (fa3_status status = prepare(params, Rules::shapes, problem, fit)) return status;
  if (fa3_status status = find_card(multiprocessors, card)) return status;
  multiprocessors = card.multiprocessors;
  plan = &fa3::plan(problem, fit, card);
  return FA3_OK;
}

fa3_status workspace_size(const fa3_forward_params* params, int multiprocessors, size_t* bytes) {
  const ForwardPlan* made;
  if (bytes == nullptr) return fail(FA3_ERROR_INVALID_ARGUMENT, "bytes is NULL");
  if (fa3_status status = plan(params, multiprocessors, made)) return status;
  *bytes = made->workspace_bytes;
  return FA3_OK;
}

// The plan that fa3_forward makes without a schedule, of which fa3_forward_schedule makes the device's part.
fa3_status prepare_schedule(const fa3_forward_params* params, Rules rules, ForwardProblem& problem, Fit& fit) {
  if (fa3_status status = prepare(params, rules, problem, fit)) return status;
  problem.schedule = nullptr;
  return FA3_OK;
}

fa3_status schedule_size(const fa3_forward_params* params, int multiprocessors, size_t* bytes) {
  ForwardProblem problem;
  Fit fit;
  if (bytes == nullptr) return fail(FA3_ERROR_INVALID_ARGUMENT, "bytes is NULL");
  if (fa3_status status = prepare_schedule(params, Rules::shapes, problem, fit)) return status;
  Card card;
  if (fa3_status status = find_card(multiprocessors, card)) return status;
  *bytes = fa3::plan(problem, fit, card).schedule_bytes;
  return FA3_OK;
}

fa3_status make_schedule(const fa3_forward_params* params, void* schedule, size_t schedule_bytes, CUstream stream) {
  ForwardProblem problem;
  Fit fit;
  if (fa3_status status = prepare_schedule(params, Rules::device, problem, fit)) return status;
  if (!problem.planned || problem.empty()) return FA3_OK;
  if (schedule == nullptr) return fail(FA3_ERROR_INVALID_ARGUMENT, "schedule is NULL, must be device memory");
  Device device;
  if (fa3_status status = find_device(device)) return status;
  const ForwardPlan& made = fa3::plan(problem, fit, device.context->card);
  if (fa3_status status = validate_schedule(problem, schedule, schedule_bytes, made.schedule_bytes)) return status;
  return launch_schedule(problem, made, device, schedule, stream);
}

fa3_status forward(const fa3_forward_params* params, void* workspace, size_t workspace_bytes, CUstream stream) {
  ForwardProblem problem;
  Fit fit;
  if (fa3_status status = prepare(params, Rules::device, problem, fit)) return status;
  // Arguments come before the driver: it is not asked for a device where no plan could do with the workspace.
  Device device{};
  const ForwardPlan* made = nullptr;
  fa3_status no_plan = FA3_OK;  // why there is none
  if (workspace && workspace_bytes >= FA3_FORWARD_WORKSPACE_BYTES && !problem.empty()) {
    no_plan = find_device(device);
    if (!no_plan) made = &fa3::plan(problem, fit, device.context->card);
  }
  const size_t needed = made ? made->workspace_bytes : FA3_FORWARD_WORKSPACE_BYTES;  // what every call needs
  if (fa3_status status = validate_workspace(problem, workspace, workspace_bytes, needed)) return status;
  if (made && problem.planned)
    if (fa3_status status = check_schedule(problem, made->schedule_bytes)) return status;
  return made ? launch(problem, *made, device, workspace, stream) : no_plan;
}

fa3_status check_threads(int threads) {
  if (threads >= 0) return FA3_OK;
  return fail(FA3_ERROR_INVALID_ARGUMENT, "threads is %d, must be >= 0", threads);
}

fa3_status reference(const fa3_forward_params* params, int threads) {
  ForwardProblem problem;
  if (fa3_status status = validate(params, Rules::reference, problem)) return status;
  if (fa3_status status = check_threads(threads)) return status;
  return reference_forward(problem, threads);
}

fa3_status reference_gradients(const fa3_backward_params* params, int threads) {
  BackwardProblem problem;
  if (fa3_status status = validate(params, Rules::reference, problem)) return status;
  if (fa3_status status = check_threads(threads)) return status;
  return reference_backward(problem, threads);
}

// With a plan whose workspace, launches and refusals are those of any card; what else depends on it, `suit` mends.
fa3_status prepare(const fa3_backward_params* params, Rules rules, BackwardProblem& problem, BackwardPlan& plan) {
  if (fa3_status status = validate(params, rules, problem)) return status;
  return fa3::plan(problem, assumed_card(132), plan);
}

fa3_status suit(const BackwardProblem& problem, const Card& card, BackwardPlan& plan) {
  return plan.by_card ? fa3::plan(problem, card, plan) : FA3_OK;
}

fa3_status check_backward(const fa3_backward_params* params) {
  BackwardProblem problem;
  BackwardPlan plan;
  return prepare(params, Rules::device, problem, plan);
}

fa3_status backward_workspace_size(const fa3_backward_params* params, size_t* bytes) {
  BackwardProblem problem;
  BackwardPlan plan;
  if (bytes == nullptr) return fail(FA3_ERROR_INVALID_ARGUMENT, "bytes is NULL");
  if (fa3_status status = prepare(params, Rules::shapes, problem, plan)) return status;
  *bytes = plan.workspace_bytes();
  return FA3_OK;
}

fa3_status backward(const fa3_backward_params* params, void* workspace, size_t workspace_bytes, CUstream stream) {
  BackwardProblem problem;
  BackwardPlan plan;
  if (fa3_status status = prepare(params, Rules::device, problem, plan)) return status;
  if (fa3_status status = validate_workspace(problem, workspace, workspace_bytes, plan.workspace_bytes()))
    return status;
  if (plan.launch_count() == 0) return FA3_OK;
  Device device;
  if (fa3_status status = find_device(device)) return status;
  if (fa3_status status = suit(problem, device.context->card, plan)) return status;
  return launch(problem, plan, device, workspace, stream);
}

fa3_status backward_kernel_info(const fa3_backward_params* params, int multiprocessors, int launch,
                                fa3_kernel_info* info) {
  BackwardProblem problem;
  BackwardPlan plan;
  if (fa3_status status = prepare(params, Rules::shapes, problem, plan)) return status;
  Card card;
  if (fa3_status status = find_card(multiprocessors, card)) return status;
  if (fa3_status status = suit(problem, card, plan)) return status;
  return write_info(info, plan, launch, card.multiprocessors);
}

fa3_status check_quantize(const fa3_quantize_params* params) {
  QuantizeProblem problem;
  return validate(params, Rules::device, problem);
}

fa3_status quantize_workspace_size(const fa3_quantize_params* params, size_t* bytes) {
  QuantizeProblem problem;
  if (bytes == nullptr) return fail(FA3_ERROR_INVALID_ARGUMENT, "bytes is NULL");
  if (fa3_status status = validate(params, Rules::shapes, problem)) return status;
  *bytes = plan(problem).workspace_bytes;
  return FA3_OK;
}

fa3_status quantize(const fa3_quantize_params* params, void* workspace, size_t workspace_bytes, CUstream stream) {
  QuantizeProblem problem;
  if (fa3_status status = validate(params, Rules::device, problem)) return status;
  const QuantizePlan plan = fa3::plan(problem);
  if (fa3_status status = validate_workspace(problem, workspace, workspace_bytes, plan.workspace_bytes)) return status;
  if (plan.launch_count == 0) return FA3_OK;
  Device device;
  if (fa3_status status = find_device(device)) return status;
  return launch(problem, plan, device, workspace, stream);
}

fa3_status quantize_on_cpu(const fa3_quantize_params* params) {
  QuantizeProblem problem;
  if (fa3_status status = validate(params, Rules::reference, problem)) return status;
  return reference_quantize(problem);
}

fa3_status check_append(const fa3_append_params* params) {
  AppendProblem problem;
  return validate(params, problem);
}

fa3_status append(const fa3_append_params* params, CUstream stream) {
  AppendProblem problem;
  if (fa3_status status = validate(params, problem)) return status;
  const AppendPlan plan = fa3::plan(problem);
  if (plan.grid == 0) return FA3_OK;
  Device device;
  if (fa3_status status = find_device(device)) return status;
  return launch(problem, plan, device, stream);
}

fa3_status append_on_cpu(const fa3_append_params* params) {
  AppendProblem problem;
  if (fa3_status status = validate(params, problem)) return status;
  return reference_append(problem);
}

fa3_status check_combine(const fa3_combine_params* params) {
  CombineProblem problem;
  return validate(params, problem);
}

fa3_status combine(const fa3_combine_params* params, CUstream stream) {
  CombineProblem problem;
  if (fa3_status status = validate(params, problem)) return status;
  const CombinePlan plan = fa3::plan(problem);
  if (plan.grid == 0) return FA3_OK;
  Device device;
  if (fa3_status status = find_device(device)) return status;
  return launch(problem, plan, device, stream);
}

fa3_status combine_on_cpu(const fa3_combine_params* params) {
  CombineProblem problem;
  if (fa3_status status = validate(params, problem)) return status;
  return reference_combine(problem);
}

fa3_status kernel_info(const fa3_forward_params* params, int multiprocessors, int launch, fa3_kernel_info* info) {
  const ForwardPlan* made;
  if (fa3_status status = plan(params, multiprocessors, made)) return status;
  return write_info(info, *made, launch, multiprocessors);
}

fa3_status kernel_info_at(int index, fa3_kernel_info* info) {
  if (index < 0 || index >= row_count)
    return fail(FA3_ERROR_INVALID_ARGUMENT, "index is %d, must be from 0 to %d", index, row_count - 1);
  return write_info(info, rows[index]);
}

fa3_status preload() {
  Device device;
  if (fa3_status status = find_device(device)) return status;
  return load_all(device);
}

}  // namespace

fa3_status fa3_tensor_pack(fa3_tensor* tensor) { return finish(pack(tensor)); }

fa3_status fa3_forward_check(const fa3_forward_params* params) {
  ForwardProblem problem;
  Fit fit;
  return finish(prepare(params, Rules::device, problem, fit));
}

fa3_status fa3_forward_workspace_size(const fa3_forward_params* params, int32_t multiprocessors, size_t* bytes) {
  return finish(workspace_size(params, multiprocessors, bytes));
}

fa3_status fa3_forward(const fa3_forward_params* params, void* workspace, size_t workspace_bytes, fa3_stream stream) {
  return finish(forward(params, workspace, workspace_bytes, stream));
}

fa3_status fa3_forward_schedule_size(const fa3_forward_params* params, int32_t multiprocessors, size_t* bytes) {
  return finish(schedule_size(params, multiprocessors, bytes));
}

fa3_status fa3_forward_schedule(const fa3_forward_params* params, void* schedule, size_t schedule_bytes,
                                fa3_stream stream) {
  return finish(make_schedule(params, schedule, schedule_bytes, stream));
}

fa3_status fa3_backward_check(const fa3_backward_params* params) { return finish(check_backward(params)); }

fa3_status fa3_backward_workspace_size(const fa3_backward_params* params, size_t* bytes) {
  return finish(backward_workspace_size(params, bytes));
}

fa3_status fa3_backward(const fa3_backward_params* params, void* workspace, size_t workspace_bytes, fa3_stream stream) {
  return finish(backward(params, workspace, workspace_bytes, stream));
}

fa3_status fa3_backward_kernel_info(const fa3_backward_params* params, int32_t multiprocessors, int32_t launch,
                                    fa3_kernel_info* info) {
  return finish(backward_kernel_info(params, multiprocessors, launch, info));
}

fa3_status fa3_reference_backward(const fa3_backward_params* params, int threads) {
  return finish(reference_gradients(params, threads));
}

fa3_status fa3_reference_forward(const fa3_forward_params* params, int threads) {
  return finish(reference(params, threads));
}

fa3_status fa3_quantize_check(const fa3_quantize_params* params) { return finish(check_quantize(params)); }

fa3_status fa3_quantize_workspace_size(const fa3_quantize_params* params, size_t* bytes) {
  return finish(quantize_workspace_size(params, bytes));
}

fa3_status fa3_quantize(const fa3_quantize_params* params, void* workspace, size_t workspace_bytes, fa3_stream stream) {
  return finish(quantize(params, workspace, workspace_bytes, stream));
}

fa3_status fa3_reference_quantize(const fa3_quantize_params* params) { return finish(quantize_on_cpu(params)); }

fa3_status fa3_append_check(const fa3_append_params* params) { return finish(check_append(params)); }

fa3_status fa3_append(const fa3_append_params* params, fa3_stream stream) { return finish(append(params, stream)); }

fa3_status fa3_reference_append(const fa3_append_params* params) { return finish(append_on_cpu(params)); }

fa3_status fa3_combine_check(const fa3_combine_params* params) { return finish(check_combine(params)); }

fa3_status fa3_combine(const fa3_combine_params* params, fa3_stream stream) { return finish(combine(params, stream)); }

fa3_status fa3_reference_combine(const fa3_combine_params* params) { return finish(combine_on_cpu(params)); }

fa3_status fa3_forward_kernel_info(const fa3_forward_params* params, int32_t multiprocessors, int32_t launch,
                                   fa3_kernel_info* info) {
  return finish(kernel_info(params, multiprocessors, launch, info));
}

int fa3_kernel_count() { return row_count; }

fa3_status fa3_kernel_info_at(int index, fa3_kernel_info* info) { return finish(kernel_info_at(index, info)); }

fa3_status fa3_preload() { return finish(preload()); }

int fa3_version() { return FA3_VERSION_MAJOR * 10000 + FA3_VERSION_MINOR * 100 + FA3_VERSION_PATCH; }

int fa3_abi_version() { return FA3_ABI_VERSION; }

const char* fa3_status_string(fa3_status status) {
  switch (status) {
    case FA3_OK: return "ok";
    case FA3_ERROR_INVALID_ARGUMENT: return "invalid argument";
    case FA3_ERROR_UNSUPPORTED: return "unsupported";
    case FA3_ERROR_WORKSPACE_TOO_SMALL: return "workspace too small";
    case FA3_ERROR_NO_DRIVER: return "no CUDA driver";
    case FA3_ERROR_NO_CONTEXT: return "no current CUDA context";
    case FA3_ERROR_WRONG_DEVICE: return "wrong device";
    case FA3_ERROR_NOT_LOADED: return "kernel not loaded";
    case FA3_ERROR_CUDA: return "CUDA driver error";
    case FA3_ERROR_OUT_OF_MEMORY: return "out of host memory";
  }
  return "unknown status";
}

const char* fa3_last_error_message() { return last_message(); }
