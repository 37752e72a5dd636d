# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper check`: one file for each subject that is checked, and the command that shows what they find."""
