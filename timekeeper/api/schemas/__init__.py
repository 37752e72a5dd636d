# SPDX-License-Identifier: Apache-2.0
"""Request bodies and answers, in addition to the types that other parts share (`slicekeeper.wire`).

Unknown fields of a body are refused. The OpenAPI document is generated from these types, so the two cannot differ.
"""
