// Package verb defines a verb of veil-tools.
package verb

import "context"

// Verb is one verb of veil-tools.
type Verb struct {
	// Short describes it in one line.
	Short string
	// Run runs until it is done or ctx ends. flag.ErrHelp is a request for help that was answered.
	Run func(ctx context.Context, args []string) error
}
