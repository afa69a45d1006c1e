// Package nl is the only importer of the netlink library in this module. It has aliases of the
// library's types, retries dumps that the kernel interrupted (NLM_F_DUMP_INTR), and turns the
// errnos that callers branch on into ErrNotFound and ErrExists.
package nl
