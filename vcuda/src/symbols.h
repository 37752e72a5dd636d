/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_SYMBOLS_H
#define VC_SYMBOLS_H

/* The definition of a function in the first loaded object that has one, our own left out. */
void *vc_symbols_find(const char *symbol);

#endif
