/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_DEVICE_H
#define VC_DEVICE_H

#include "hook.h"

/* Whether this is the GPU that the seat is for; before there is a seat, any may be. */
bool vc_device_has(const CUuuid *gpu);
/* CUDA_SUCCESS if a context may be made there, else the error for the program. */
CUresult vc_device_admit(CUdevice device);
/* Whether memory may be taken there. */
bool vc_device_is_ours(CUdevice device);
/* Whether the host's memory is the device's as well. */
bool vc_host_counts(void);
/* Whether such memory stays on the host. An unknown location counts as the device, to be safe, and so does managed
 * memory, which moves to its user. */
bool vc_on_host(CUmemAllocationType type, CUmemLocationType location);

#endif
