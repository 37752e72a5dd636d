/* SPDX-License-Identifier: Apache-2.0 */
/* Capture: what is launched in a stream becomes a graph's nodes. */
#define _GNU_SOURCE
#include "api.h"

FK_GUARD(guard)

bool fk_capture_hold(struct CUstream_st *s) {
  if (!s->capture) return false;
  pthread_mutex_lock(&guard);
  if (s->capture) return true;
  pthread_mutex_unlock(&guard);
  return false;
}

void fk_capture_let_go(void) {
  pthread_mutex_unlock(&guard);
}

static CUresult begin(struct CUstream_st *s, CUstreamCaptureMode mode, bool legacy) {
  CUgraph graph;
  if (legacy || !s || s->capture) return CUDA_ERROR_ILLEGAL_STATE;
  CUresult r = cuGraphCreate(&graph, 0);
  if (r != CUDA_SUCCESS) return r;
  pthread_mutex_lock(&guard);
  s->capture = graph;
  fk_capture_began(s, mode);
  pthread_mutex_unlock(&guard);
  return r;
}
FK_RESULT(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode),
          begin(fk_stream_of(stream, false), mode, !stream || stream == CU_STREAM_LEGACY))
FK_RESULT(cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode),
          begin(fk_stream_of(stream, true), mode, stream == CU_STREAM_LEGACY))
FK_RESULT(cuStreamBeginCapture, (CUstream stream), cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL))
static CUresult end(struct CUstream_st *s, CUgraph *out) {
  if (!s || s->joined || !fk_capture_hold(s)) return CUDA_ERROR_ILLEGAL_STATE;
  bool invalid = s->invalid;
  *out = invalid ? NULL : s->capture;
  fk_capture_ended(s);
  fk_capture_let_go();
  return invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}
FK_RESULT(cuStreamEndCapture, (CUstream stream, CUgraph *out), end(fk_stream_of(stream, false), out))
FK_RESULT(cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *out), end(fk_stream_of(stream, true), out))
static CUresult capturing(struct CUstream_st *s, CUstreamCaptureStatus *status) {
  *status = !s || !s->capture ? CU_STREAM_CAPTURE_STATUS_NONE
            : s->invalid      ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                              : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}
FK_RESULT(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status),
          capturing(fk_stream_of(stream, false), status))
FK_RESULT(cuStreamIsCapturing_ptsz, (CUstream stream, CUstreamCaptureStatus *status),
          capturing(fk_stream_of(stream, true), status))
