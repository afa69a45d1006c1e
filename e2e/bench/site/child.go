package site

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/e2e/bench/service/endpoint"
	"github.com/kubeveil/kubeveil/e2e/bench/service/openloop"
	"github.com/kubeveil/kubeveil/e2e/bench/tlspair"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Child reports whether Run started this process as a server, a proxy or a client. If so, it runs
// the verb in the arguments and returns the exit status. In other processes it does nothing. A
// program that calls Run must call Child first.
func Child() (status int, is bool) { return suite.Child(Suite, child) }

func child(ctx context.Context, args []string, out io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "serve":
		return serve(ctx)
	case len(args) == 2 && args[0] == "load":
		return openloop.RunJSON(ctx, args[1], out)
	case len(args) == 3 && args[0] == "hold":
		return hold(ctx, args[1], args[2], out)
	case len(args) == 4 && args[0] == "proxy":
		var forwards []tlspair.Forward
		if err := json.Unmarshal([]byte(args[3]), &forwards); err != nil {
			return err
		}
		return tlspair.Serve(ctx, args[1], tlspair.End(args[2]), forwards...)
	}
	return fmt.Errorf("%q: want serve, load, hold or proxy, with arguments", args)
}

// portHTTP2 is the port on which serve answers HTTP/2 without TLS (prior knowledge).
const portHTTP2 = 8081

// serve runs the servers of a server pod until ctx is done.
func serve(ctx context.Context) error {
	web := &http.Server{Addr: fmt.Sprintf(":%d", portHTTP2), Protocols: new(http.Protocols),
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	web.Protocols.SetUnencryptedHTTP2(true)
	g, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() { web.Close() })()
	g.Go(func() error { return endpoint.Serve(ctx, "server") })
	g.Go(func() error {
		if err := web.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	return g.Wait()
}
