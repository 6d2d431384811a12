// Where the planes of one utterance lie.

template <typename acc_t>
acc_t* planes_of(const Planes& planes, int64_t b) {
  return static_cast<acc_t*>(planes.data) + b * planes.stride_b;
}

template <typename acc_t>
ArcPlanes<acc_t> arcs_of(const Planes& arcs, const FrontLayout& layout, int64_t b) {
  acc_t* first = planes_of<acc_t>(arcs, b);
  return {first, first + layout.slots(), first + 2 * layout.slots(), first + 3 * layout.slots()};
}

template <typename acc_t>
struct PosteriorPlanes {
  acc_t *blank, *label;
};

template <typename acc_t>
PosteriorPlanes<acc_t> posteriors_of(const Planes& posteriors, const FrontLayout& layout, int64_t b) {
  acc_t* first = planes_of<acc_t>(posteriors, b);
  return {first, first + layout.slots()};
}
