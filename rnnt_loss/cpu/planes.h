// Where the planes of one utterance lie.

template <typename acc_t>
ArcPlanes<acc_t> arcs_of(const Arcs& arcs, const Batch& batch, int64_t b) {
  const int64_t slots = batch.layout().slots(), plane = batch.B * slots;
  acc_t* first = static_cast<acc_t*>(arcs.planes) + b * slots;
  return {first, first + plane, first + 2 * plane, first + 3 * plane};
}

template <typename acc_t>
struct PosteriorPlanes {
  acc_t *blank, *label;

  PosteriorPlanes(const void* posteriors, const Batch& batch, int64_t b) {
    const int64_t slots = batch.layout().slots();
    blank = static_cast<acc_t*>(const_cast<void*>(posteriors)) + b * slots;
    label = blank + batch.B * slots;
  }
};
