package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"harness-s/internal/nodes"
)

func TestNewestRunIsOfThatConfig(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"sql-20260101-000000", "sql-20260102-000000", "sql-long-20270101-000000", "sql-20280101-000000"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if name == "sql-20280101-000000" {
			continue // it never began
		}
		if err := os.WriteFile(filepath.Join(root, name, "config.yaml"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := newestRun(root, "sql"); err != nil || filepath.Base(got) != "sql-20260102-000000" {
		t.Errorf("got %s, %v", got, err)
	}
	for _, stem := range []string{"s", "sql[", "other"} {
		if got, err := newestRun(root, stem); err == nil {
			t.Errorf("%s: got %s", stem, got)
		}
	}
	if _, err := newestRun(filepath.Join(root, "none"), "sql"); err == nil {
		t.Error("a root that is not there")
	}
}

// TestTrainAsNode: a place that makes no sense is wrong use; a node that node 0 refuses has failed.
func TestTrainAsNode(t *testing.T) {
	const recipe = "../../recipes/reference.yaml"
	t.Setenv("NODE_RANK", "1")
	if code, _, stderr := call(t, "", "train", recipe); code != exitUsage || !strings.Contains(stderr, "NNODES") {
		t.Errorf("NODE_RANK alone: exit %d\n%s", code, stderr)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	host, port, _ := net.SplitHostPort(address)
	for name, value := range map[string]string{"NNODES": "2", "MASTER_ADDR": host, "MASTER_PORT": port, nodes.TokenVariable: "ours"} {
		t.Setenv(name, value)
	}
	for token, says := range map[string]string{"ours": "another config", "theirs": nodes.TokenVariable} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			nodes.Gather(ctx, nodes.Place{Nodes: 2, Leader: address, Token: token, Patience: time.Minute}, "not this config", nil)
		}()
		if code, _, stderr := call(t, "", "train", recipe); code != exitFailed || !strings.Contains(stderr, says) {
			t.Errorf("token %q: exit %d, want %d with %q\n%s", token, code, exitFailed, says, stderr)
		}
		cancel()
		<-ended
	}
}
