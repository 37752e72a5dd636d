/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_SYMBOLS_H
#define VC_SYMBOLS_H

/* Return a function's definition in the first loaded object that has one, except our own; NULL if none has. */
void *vc_symbols_find(const char *symbol);

#endif
