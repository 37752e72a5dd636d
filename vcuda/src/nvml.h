/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_NVML_H
#define VC_NVML_H

/* Return the hook of this name, or what was found if there is none. */
void *vc_nvml_hook(const char *name, void *found);
/* In a forked child. */
void vc_nvml_reset(void);

#endif
