/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture: while one is under way, no launch takes the fast path. */
#include "launch.h"

static CUresult begun(CUresult r) {
  if (r == CUDA_SUCCESS) vc_launch_capture(1);
  return r;
}

/* An end that fails has ended the capture all the same. */
#define ENDS(stream, call)                                                                         \
  bool was_ = vc_stream_capturing(stream);                                                         \
  CUresult r_ = (call);                                                                            \
  if (was_) vc_launch_capture(-1);                                                                 \
  return r_

VC_HOOK CUresult cuStreamBeginCapture(CUstream s) {
  return begun(VC_CALL(cuStreamBeginCapture)(s));
}
VC_HOOK CUresult cuStreamBeginCapture_ptsz(CUstream s) {
  return begun(VC_CALL(cuStreamBeginCapture_ptsz)(s));
}
VC_HOOK CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode mode) {
  return begun(VC_CALL(cuStreamBeginCapture_v2)(s, mode));
}
VC_HOOK CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, CUstreamCaptureMode mode) {
  return begun(VC_CALL(cuStreamBeginCapture_v2_ptsz)(s, mode));
}
VC_HOOK CUresult cuStreamBeginCaptureToGraph(CUstream s, CUgraph graph, const CUgraphNode *after,
                                             const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
  return begun(VC_CALL(cuStreamBeginCaptureToGraph)(s, graph, after, edges, count, mode));
}
VC_HOOK CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream s, CUgraph graph, const CUgraphNode *after,
                                                  const CUgraphEdgeData *edges, size_t count,
                                                  CUstreamCaptureMode mode) {
  return begun(VC_CALL(cuStreamBeginCaptureToGraph_ptsz)(s, graph, after, edges, count, mode));
}

/* Captures of CUDA 13: for graphics interoperation, and onto an existing graph. */
#ifdef VC_HAVE_cuStreamBeginRecaptureToGraph
VC_HOOK CUresult cuStreamBeginCaptureToCig(CUstream s, CUstreamCigCaptureParams *p) {
  return begun(VC_CALL(cuStreamBeginCaptureToCig)(s, p));
}
VC_HOOK CUresult cuStreamBeginCaptureToCig_ptsz(CUstream s, CUstreamCigCaptureParams *p) {
  return begun(VC_CALL(cuStreamBeginCaptureToCig_ptsz)(s, p));
}
VC_HOOK CUresult cuStreamBeginRecaptureToGraph(CUstream s, CUstreamCaptureMode mode, CUgraph graph,
                                               CUgraphRecaptureCallback f, void *d) {
  return begun(VC_CALL(cuStreamBeginRecaptureToGraph)(s, mode, graph, f, d));
}
VC_HOOK CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream s, CUstreamCaptureMode mode, CUgraph graph,
                                                    CUgraphRecaptureCallback f, void *d) {
  return begun(VC_CALL(cuStreamBeginRecaptureToGraph_ptsz)(s, mode, graph, f, d));
}
VC_HOOK CUresult cuStreamEndCaptureToCig(CUstream s) {
  ENDS(s, VC_CALL(cuStreamEndCaptureToCig)(s));
}
VC_HOOK CUresult cuStreamEndCaptureToCig_ptsz(CUstream s) {
  ENDS(vc_per_thread(s), VC_CALL(cuStreamEndCaptureToCig_ptsz)(s));
}
#endif

VC_HOOK CUresult cuStreamEndCapture(CUstream s, CUgraph *graph) {
  ENDS(s, VC_CALL(cuStreamEndCapture)(s, graph));
}
VC_HOOK CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph *graph) {
  ENDS(vc_per_thread(s), VC_CALL(cuStreamEndCapture_ptsz)(s, graph));
}
