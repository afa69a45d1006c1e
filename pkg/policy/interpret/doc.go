// Package interpret judges packets by the nftables table of policies, as nf_tables would: by the
// chains, rules and elements that the kernel returns. Package nftables writes the table. `veilctl
// policy trace` shows what a packet meets, and tests compare the verdict with the plan's.
//
// It shares only the list of chains at hooks with the writer, so an error of the writer shows here.
// It knows the expressions that the writer uses, and returns an error for any other.
//
// Start reading at Kernel.Judge in kernel.go, then machine.go.
package interpret
