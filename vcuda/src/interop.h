/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's calls for other libraries (OpenGL, EGL, VDPAU) and for profilers, which cuda.h does not declare. The
 * headers that do need those libraries' own; here their handles are what they are in size. */
#ifndef VC_INTEROP_H
#define VC_INTEROP_H

CUresult cuGLCtxCreate(CUcontext *pCtx, unsigned Flags, CUdevice device);
CUresult cuGLCtxCreate_v2(CUcontext *pCtx, unsigned Flags, CUdevice device);
CUresult cuGLInit(void);
CUresult cuGLGetDevices(unsigned *pCount, CUdevice *pDevices, unsigned count, int deviceList);
CUresult cuGLGetDevices_v2(unsigned *pCount, CUdevice *pDevices, unsigned count, int deviceList);
CUresult cuGLRegisterBufferObject(unsigned buffer);
CUresult cuGLUnregisterBufferObject(unsigned buffer);
CUresult cuGLSetBufferObjectMapFlags(unsigned buffer, unsigned Flags);
CUresult cuGLMapBufferObject(CUdeviceptr_v1 *dptr, unsigned *size, unsigned buffer);
CUresult cuGLMapBufferObject_v2(CUdeviceptr *dptr, size_t *size, unsigned buffer);
CUresult cuGLMapBufferObject_v2_ptds(CUdeviceptr *dptr, size_t *size, unsigned buffer);
CUresult cuGLMapBufferObjectAsync(CUdeviceptr_v1 *dptr, unsigned *size, unsigned buffer, CUstream hStream);
CUresult cuGLMapBufferObjectAsync_v2(CUdeviceptr *dptr, size_t *size, unsigned buffer, CUstream hStream);
CUresult cuGLMapBufferObjectAsync_v2_ptsz(CUdeviceptr *dptr, size_t *size, unsigned buffer, CUstream hStream);
CUresult cuGLUnmapBufferObject(unsigned buffer);
CUresult cuGLUnmapBufferObjectAsync(unsigned buffer, CUstream hStream);
CUresult cuGraphicsGLRegisterBuffer(CUgraphicsResource *pResource, unsigned buffer, unsigned Flags);
CUresult cuGraphicsGLRegisterImage(CUgraphicsResource *pResource, unsigned image, unsigned target, unsigned Flags);

CUresult cuVDPAUCtxCreate(CUcontext *pCtx, unsigned flags, CUdevice device, unsigned vdpDevice, void *vdpGetProcAddress);
CUresult cuVDPAUCtxCreate_v2(CUcontext *pCtx, unsigned flags, CUdevice device, unsigned vdpDevice, void *vdpGetProcAddress);
CUresult cuVDPAUGetDevice(CUdevice *pDevice, unsigned vdpDevice, void *vdpGetProcAddress);
CUresult cuGraphicsVDPAURegisterVideoSurface(CUgraphicsResource *pResource, unsigned vdpSurface, unsigned flags);
CUresult cuGraphicsVDPAURegisterOutputSurface(CUgraphicsResource *pResource, unsigned vdpSurface, unsigned flags);

CUresult cuGraphicsEGLRegisterImage(CUgraphicsResource *pResource, void *image, unsigned flags);
CUresult cuGraphicsResourceGetMappedEglFrame(void *eglFrame, CUgraphicsResource resource, unsigned index, unsigned mipLevel);
CUresult cuEGLStreamConsumerConnect(void *conn, void *stream);
CUresult cuEGLStreamConsumerConnectWithFlags(void *conn, void *stream, unsigned flags);
CUresult cuEGLStreamConsumerDisconnect(void *conn);
CUresult cuEGLStreamConsumerAcquireFrame(void *conn, CUgraphicsResource *pResource, CUstream *pStream, unsigned timeout);
CUresult cuEGLStreamConsumerReleaseFrame(void *conn, CUgraphicsResource resource, CUstream *pStream);
CUresult cuEGLStreamProducerConnect(void *conn, void *stream, int width, int height);
CUresult cuEGLStreamProducerDisconnect(void *conn);
CUresult cuEGLStreamProducerReturnFrame(void *conn, void *eglframe, CUstream *pStream);
CUresult cuEventCreateFromEGLSync(CUevent *phEvent, void *eglSync, unsigned flags);

CUresult cuProfilerInitialize(const char *configFile, const char *outputFile, int outputMode);
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);

#endif
