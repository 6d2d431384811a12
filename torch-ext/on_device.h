// The ops' work on a CUDA device: the whole batch at once, in order on torch's current stream.
#pragma once

#include <torch/csrc/stable/accelerator.h>

#include "../rnnt_loss/backend.h"
#include "call.h"

#if !defined(RNNT_EMULATE)
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
// A torch without CUDA does not have it, and may load this library all the same: its ops serve CPU tensors too.
#pragma weak aoti_torch_get_current_cuda_stream
#endif

namespace rnnt {

// torch's current stream on the device of a tensor, which is the current device meanwhile.
class CurrentStream {
 public:
#if defined(RNNT_EMULATE)
  explicit CurrentStream(const Tensor&) {}
#else
  explicit CurrentStream(const Tensor& x) : guard_(x.get_device_index()) {
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream_));
  }
#endif
  void* get() const { return stream_; }

 private:
#if !defined(RNNT_EMULATE)
  torch::stable::accelerator::DeviceGuard guard_;
#endif
  void* stream_ = nullptr;
};

class BatchOnDevice {
 public:
  BatchOnDevice(void* stream, void* workspace) : stream_(stream), workspace_(workspace) {}

  void loss(const ScoreParams& score, const LatticeParams& lattice) const {
    cuda::loss(score, with_workspace(lattice), stream_);
  }
  void gradient(const PosteriorParams& posteriors, const ScoreBackwardParams& rows) const {
    cuda::gradient(with_workspace(posteriors), rows, stream_);
  }
  void alpha_beta(const ScoreParams& score, const AlphaBetaParams& lattice) const {
    cuda::score(score, stream_);
    cuda::alpha_beta(with_workspace(lattice), stream_);
  }
  void gradient_from_alpha_beta(const PosteriorFromAlphaBetaParams& posteriors, const ScoreBackwardParams& rows) const {
    cuda::posteriors_from_alpha_beta(posteriors, stream_);
    cuda::gradient({}, rows, stream_);
  }
  void scores(const ScoreParams& score) const { cuda::score(score, stream_); }
  void gradient_from_scores(const ScoreBackwardParams& rows) const {
    cuda::gradient({}, rows, stream_);
    cuda::tail_gradient(rows, stream_);
  }

 private:
  template <typename Params>
  Params with_workspace(Params p) const {
    p.workspace = workspace_;
    return p;
  }

  void *stream_, *workspace_;
};

struct OnDevice {
  static constexpr Side kSide = Side::kDevice;

  // As on the CPU, with the batch for the only part. Scratch memory may be freed when the kernels are queued: the next
  // owner's are queued behind them.
  template <typename Work>
  static void each_part(const Call& call, bool wide, int count, Work work) {
    const Batch& batch = call.batch;
    const ScalarType type = wide ? ScalarType::Double : ScalarType::Float;
    const int64_t stride = count * call.slots();
    Tensor planes = new_tensor(call.x, {batch.B, stride}, type);
    Tensor workspace = torch::stable::new_zeros(call.x, {cuda::workspace_bytes(batch)}, ScalarType::Byte);
    const CurrentStream stream(call.x);
    if (call.packed)
      cuda::find_packed_rows(batch, static_cast<PackedRows*>(call.packed->mutable_data_ptr()), stream.get());
    work(BatchOnDevice(stream.get(), workspace.mutable_data_ptr()), Planes{planes.mutable_data_ptr(), stride, wide});
  }

  static void tdt_scores(const Tensor& logits, const TdtParams& p) {
    const CurrentStream stream(logits);
    cuda::tdt_scores(p, stream.get());
  }
  static void tdt_scores_backward(const Tensor& logits, const TdtParams& p) {
    const CurrentStream stream(logits);
    cuda::tdt_scores_backward(p, stream.get());
  }
  static void arc_lattice(const Tensor& scores, ArcLatticeParams p) {
    Tensor workspace = torch::stable::new_empty(scores, {cuda::arc_workspace_bytes(p)}, ScalarType::Byte);
    p.workspace = workspace.mutable_data_ptr();
    const CurrentStream stream(scores);
    cuda::arc_lattice(p, stream.get());
  }
  static void paths(const Tensor& scores, PathParams p) {
    Tensor workspace = torch::stable::new_empty(scores, {cuda::path_workspace_bytes(p)}, ScalarType::Byte);
    p.workspace = static_cast<double*>(workspace.mutable_data_ptr());
    const CurrentStream stream(scores);
    cuda::paths(p, stream.get());
  }
};

}  // namespace rnnt
