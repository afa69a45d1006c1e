package service

import (
	"context"
	"fmt"
	"io"

	"github.com/kubeveil/kubeveil/e2e/bench/service/endpoint"
	"github.com/kubeveil/kubeveil/e2e/bench/service/openloop"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Ports on which endpoints listen. Services have the same ports.
const (
	portHTTP     = endpoint.PortHTTP
	portEcho     = endpoint.PortEcho
	portSockperf = 11111
	portIperf    = 5201
)

// Child reports whether Run started this process as a child. If so, it runs the verb in the
// arguments and returns the exit status. In other processes it does nothing. A program that calls
// Run must call Child first.
func Child() (status int, is bool) { return suite.Child(Suite, child) }

func child(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 2 {
		return fmt.Errorf("%q: want a verb and its argument", args)
	}
	switch what, arg := args[0], args[1]; what {
	case "serve":
		return endpoint.Serve(ctx, arg)
	case "load":
		return openloop.RunJSON(ctx, arg, out)
	case "who":
		return endpoint.Who(ctx, arg, out)
	}
	return fmt.Errorf("%s: want serve, load or who", args[0])
}
