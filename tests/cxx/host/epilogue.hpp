// Appended to an emitted 2.x kernel, in its namespace, to run its epilogue on the host: `host_run` visits every tile
// of an accumulator [l, m, n] of the kernel's own rows and columns, as cutlass::epilogue::threadblock::EpilogueWithVisitorCallbacks does.

extern "C" std::int64_t host_workspace(Arguments const* arguments) { return workspace_of(*arguments).bytes; }

extern "C" void host_run(Arguments const* arguments, ElementAccumulator const* accumulator) {
  using Lanes = evt::threadblock::Lanes<ThreadMap>;
  auto const workspace = workspace_of(*arguments);
  int const extent_m = int(arguments->HOST_ROWS), extent_n = int(arguments->HOST_COLUMNS), extent_l = int(arguments->l);
  auto const shape = cute::make_shape(extent_m, extent_n, extent_l);
  auto const params = Visitor::to_underlying_arguments(shape, visitor_arguments(*arguments, workspace), nullptr);
  for (int l = 0; l < extent_l; ++l) {
    for (int tile_m = 0; tile_m < (extent_m + Lanes::kTileM - 1) / Lanes::kTileM; ++tile_m) {
      for (int tile_n = 0; tile_n < (extent_n + Lanes::kTileN - 1) / Lanes::kTileN; ++tile_n) {
        Visitor::SharedStorage shared;
        host::run(32 * Lanes::kWarps, [&] {
          cutlass::gemm::GemmCoord const tile(tile_m, tile_n, l);
          int const thread = int(threadIdx.x);
          Lanes const lanes(tile, thread, shape);
          Visitor visitor(params, shared);
          auto callbacks = visitor.get_callbacks(tile, thread, shape);
          callbacks.begin_epilogue();
          for (int step = 0; step < Lanes::kSteps; ++step) {
            callbacks.begin_step(step);
            for (int row = 0; row < Lanes::kRows; ++row) {
              callbacks.begin_row(row);
              for (int column = 0; column < Lanes::kColumns; ++column) {
                // Outside of the problem a kernel has sums of zeros.
                cutlass::Array<ElementAccumulator, Lanes::kSize> values;
                int const m = lanes.row_of_step(step, row);
                for (int i = 0; i < Lanes::kSize; ++i) {
                  int const n = lanes.column_of_tile(column, i);
                  bool const inside = m < extent_m && n < extent_n;
                  values[i] = inside ? accumulator[(std::int64_t(l) * extent_m + m) * extent_n + n]
                                     : ElementAccumulator(0);
                }
                callbacks.visit(step, row, column, row * Lanes::kColumns + column, values);
              }
              callbacks.end_row(row);
            }
            callbacks.end_step(step);
          }
          callbacks.end_epilogue();
        });
      }
    }
  }
#if defined(HOST_JOBS)
  FinalJobs const jobs = make_finish_jobs(*arguments, workspace);
  gridDim = dim3(2, HOST_JOBS);
  for (unsigned y = 0; y < HOST_JOBS; ++y) {
    for (unsigned x = 0; x < 2; ++x) {
      blockIdx = {x, y, 0};
      host::run(evt::kFinishThreads, [&] { evt::finish_all(HOST_FINISH); });
    }
  }
#endif
}
