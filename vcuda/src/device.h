/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_DEVICE_H
#define VC_DEVICE_H

#include "hook.h"

/* Whether this is the GPU that the seat is for; before there is a seat, any may be. */
bool vc_device_has(const CUuuid *gpu);
/* Whether a context may be made there. */
CUresult vc_device_admit(CUdevice device);
/* Whether memory may be taken there. */
bool vc_device_is_ours(CUdevice device);
/* Whether the host's memory is the device's as well. */
bool vc_host_counts(void);
/* Whether such memory lies on the host for good. What has no name there is the device's, to be safe, and managed
 * memory goes where it is used. */
bool vc_on_host(CUmemAllocationType type, CUmemLocationType location);

#endif
