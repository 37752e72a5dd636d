/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture: while one is under way, no launch takes the fast path. */
#include "launch.h"

static CUresult captured(CUresult r, int change) {
  if (r == CUDA_SUCCESS) vc_launch_capture(change);
  return r;
}

VC_HOOK CUresult cuStreamBeginCapture(CUstream s) {
  return captured(VC_CALL(cuStreamBeginCapture)(s), 1);
}
VC_HOOK CUresult cuStreamBeginCapture_ptsz(CUstream s) {
  return captured(VC_CALL(cuStreamBeginCapture_ptsz)(s), 1);
}
VC_HOOK CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode mode) {
  return captured(VC_CALL(cuStreamBeginCapture_v2)(s, mode), 1);
}
VC_HOOK CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, CUstreamCaptureMode mode) {
  return captured(VC_CALL(cuStreamBeginCapture_v2_ptsz)(s, mode), 1);
}
VC_HOOK CUresult cuStreamBeginCaptureToGraph(CUstream s, CUgraph graph, const CUgraphNode *after,
                                             const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
  return captured(VC_CALL(cuStreamBeginCaptureToGraph)(s, graph, after, edges, count, mode), 1);
}
VC_HOOK CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream s, CUgraph graph, const CUgraphNode *after,
                                                  const CUgraphEdgeData *edges, size_t count,
                                                  CUstreamCaptureMode mode) {
  return captured(VC_CALL(cuStreamBeginCaptureToGraph_ptsz)(s, graph, after, edges, count, mode),
                  1);
}

/* Captures of CUDA 13: for graphics interoperation, and onto an existing graph. */
#ifdef VC_HAVE_cuStreamBeginRecaptureToGraph
VC_HOOK CUresult cuStreamBeginCaptureToCig(CUstream s, CUstreamCigCaptureParams *p) {
  return captured(VC_CALL(cuStreamBeginCaptureToCig)(s, p), 1);
}
VC_HOOK CUresult cuStreamBeginCaptureToCig_ptsz(CUstream s, CUstreamCigCaptureParams *p) {
  return captured(VC_CALL(cuStreamBeginCaptureToCig_ptsz)(s, p), 1);
}
VC_HOOK CUresult cuStreamBeginRecaptureToGraph(CUstream s, CUstreamCaptureMode mode, CUgraph graph,
                                               CUgraphRecaptureCallback f, void *d) {
  return captured(VC_CALL(cuStreamBeginRecaptureToGraph)(s, mode, graph, f, d), 1);
}
VC_HOOK CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream s, CUstreamCaptureMode mode, CUgraph graph,
                                                    CUgraphRecaptureCallback f, void *d) {
  return captured(VC_CALL(cuStreamBeginRecaptureToGraph_ptsz)(s, mode, graph, f, d), 1);
}
VC_HOOK CUresult cuStreamEndCaptureToCig(CUstream s) {
  bool was = vc_stream_capturing(s);
  CUresult r = VC_CALL(cuStreamEndCaptureToCig)(s);
  if (was) vc_launch_capture(-1);
  return r;
}
VC_HOOK CUresult cuStreamEndCaptureToCig_ptsz(CUstream s) {
  bool was = vc_stream_capturing(vc_per_thread(s));
  CUresult r = VC_CALL(cuStreamEndCaptureToCig_ptsz)(s);
  if (was) vc_launch_capture(-1);
  return r;
}
#endif

/* An end that fails has ended the capture all the same. */
VC_HOOK CUresult cuStreamEndCapture(CUstream s, CUgraph *graph) {
  bool was = vc_stream_capturing(s);
  CUresult r = VC_CALL(cuStreamEndCapture)(s, graph);
  if (was) vc_launch_capture(-1);
  return r;
}
VC_HOOK CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph *graph) {
  bool was = vc_stream_capturing(vc_per_thread(s));
  CUresult r = VC_CALL(cuStreamEndCapture_ptsz)(s, graph);
  if (was) vc_launch_capture(-1);
  return r;
}
