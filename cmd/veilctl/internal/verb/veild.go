package verb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

const (
	// NodesAtOnce bounds the nodes on which a verb runs concurrently. NodeLimit bounds the time of
	// one answer.
	NodesAtOnce = 16
	NodeLimit   = 20 * time.Second

	// statusLimit bounds the wait for the status of this node's veild.
	statusLimit = 9 * time.Second
)

// SocketFlag adds the flag --socket to cmd and returns its value.
func SocketFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("socket", abi.AdminSocket, "veild's `socket`")
}

// FetchStatus returns the status of the veild behind socket. Its error matches ErrNoDaemon.
func FetchStatus(ctx context.Context, socket string) (telemetry.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	s, err := admin.Fetch(ctx, socket)
	if err != nil {
		return s, fmt.Errorf("%w: %w", ErrNoDaemon, err)
	}
	return s, nil
}

// FetchPage requests a page of veild and decodes its answer into v. Its error matches ErrNoDaemon
// if veild does not answer.
func FetchPage(ctx context.Context, socket, page string, v any) error {
	body, err := admin.FetchPage(ctx, socket, page)
	return decode(body, err, v)
}

// PostPage is FetchPage for a page that takes a body, which is posted.
func PostPage(ctx context.Context, socket, page string, posted []byte, v any) error {
	body, err := admin.PostPage(ctx, socket, page, posted)
	return decode(body, err, v)
}

func decode(body []byte, err error, v any) error {
	if errors.Is(err, admin.ErrNoPage) || errors.Is(err, admin.ErrNotHere) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoDaemon, err)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("answer of veild: %w", err)
	}
	return nil
}
