package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// Command runs a command of the monitor of a machine (Guest.Monitor), such as stop or cont
// (https://www.qemu.org/docs/master/interop/qmp-spec.html).
func Command(ctx context.Context, monitor, name string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", monitor)
	if err != nil {
		return fmt.Errorf("monitor command %s: %w", name, err)
	}
	defer conn.Close()
	err = conn.SetDeadline(time.Now().Add(10 * time.Second))
	answers := json.NewDecoder(bufio.NewReader(conn))
	for _, execute := range []string{"qmp_capabilities", name} {
		if err == nil {
			err = json.NewEncoder(conn).Encode(map[string]string{"execute": execute})
		}
		if err == nil {
			err = answered(answers)
		}
	}
	if err != nil {
		return fmt.Errorf("monitor command %s: %w", name, err)
	}
	return nil
}

// answered reads the answer to a command. The greeting and events are not answers.
func answered(answers *json.Decoder) error {
	for {
		var answer struct {
			Return *struct{}
			Error  *struct{ Desc string }
		}
		if err := answers.Decode(&answer); err != nil {
			return err
		}
		if answer.Error != nil {
			return fmt.Errorf("qemu: %s", answer.Error.Desc)
		}
		if answer.Return != nil {
			return nil
		}
	}
}
