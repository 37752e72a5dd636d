# SPDX-License-Identifier: Apache-2.0
"""Bodies that are taken and answers that are given, beside the types that other parts share (`slicekeeper.wire`).

Unknown fields of a body are refused. The OpenAPI document is made of these types, so the two cannot differ.
"""
