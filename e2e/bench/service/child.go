package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/service/openloop"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Ports on which endpoints listen. Services have the same ports.
const (
	portHTTP     = 8080
	portEcho     = 9000
	portSockperf = 11111
	portIperf    = 5201
)

// Child runs the verb for which Run started its own executable, and returns its exit status. It
// returns false without doing anything when Run did not start this process. A program that calls
// Run must call Child first.
func Child() (status int, is bool) { return suite.Child(Suite, child) }

func child(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 2 {
		return fmt.Errorf("%q: want a verb and its argument", args)
	}
	switch what, arg := args[0], args[1]; what {
	case "serve":
		return serve(ctx, arg)
	case "load":
		var l openloop.Load
		if err := json.Unmarshal([]byte(arg), &l); err != nil {
			return err
		}
		r, err := l.Run(ctx)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(r)
	case "who":
		return who(ctx, arg, out)
	}
	return fmt.Errorf("%s: want serve, load or who", args[0])
}

// serve runs an endpoint: an empty answer to HTTP, its name on /who, an echo.
func serve(ctx context.Context, name string) error {
	web := http.NewServeMux()
	web.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	web.HandleFunc("/who", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) })
	errs := make(chan error, 2)
	for port, fn := range map[int]func(net.Listener) error{
		portHTTP: func(l net.Listener) error { return (&http.Server{Handler: web}).Serve(l) },
		portEcho: openloop.Echo,
	} {
		l, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		go func() { errs <- fn(l) }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-errs:
		return err
	}
}

// asks is the number of requests of the verb who. The probability that they miss one of three
// endpoints is 10^-10.
const asks = 60

// who requests the name of a server by HTTP, over a new connection each time, and prints how often
// each name was returned.
func who(ctx context.Context, addr string, out io.Writer) error {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 5 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true}}
	seen := map[string]int{}
	for range asks {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to.String()+"/who",
			nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		b, err := io.ReadAll(io.LimitReader(resp.Body, 64))
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return err
		}
		seen[string(b)]++
	}
	return json.NewEncoder(out).Encode(seen)
}
