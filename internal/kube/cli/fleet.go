// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/charmbracelet/colorprofile"
	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"xsched/internal/kube/cluster"
	"xsched/internal/kube/fleetview"
	"xsched/internal/screen"
	"xsched/internal/top"
)

// fleetFlags select nodes and tenants.
type fleetFlags struct {
	kubeconfig, context       string
	release                   string // its namespace
	node, namespace, selector string
	asJSON                    bool
	timeout                   time.Duration
}

func (f *fleetFlags) connection(c *cobra.Command) {
	c.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "`FILE` with the API server's address and the user's credentials")
	c.Flags().StringVar(&f.context, "context", "", "`NAME` of a context of the kubeconfig file")
	c.Flags().StringVar(&f.release, "xsched-namespace", "", "`NAMESPACE` of XSched itself (default $XSCHED_NAMESPACE, else xsched-system)")
}

func (f *fleetFlags) register(c *cobra.Command) {
	f.connection(c)
	c.Flags().StringVar(&f.node, "node", "", "only node `NAME`")
	c.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
	c.Flags().DurationVar(&f.timeout, "timeout", 10*time.Second, "wait for the answer of a node at most `T`")
}

func (f *fleetFlags) tenants(c *cobra.Command) {
	f.register(c)
	c.Flags().StringVarP(&f.namespace, "namespace", "n", "", "only tenants of namespace `NAME`")
	c.Flags().StringVarP(&f.selector, "selector", "l", "", "only tenants whose pods match `LABELS`")
}

// daemons connects to the API server.
func (f *fleetFlags) daemons() (*fleetview.Daemons, error) {
	if f.timeout < 0 {
		return nil, fmt.Errorf("--timeout %s is negative; use such as 10s", f.timeout)
	}
	if f.selector != "" {
		if _, err := labels.Parse(f.selector); err != nil {
			return nil, fmt.Errorf("bad selector: %w; use such as app=training", err)
		}
	}
	config, err := cluster.ConfigOf(f.kubeconfig, f.context)
	if err != nil {
		return nil, err
	}
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON // a list of many pods is smaller
	client, err := cluster.Connect(config)
	if err != nil {
		return nil, err
	}
	klog.SetLogger(logr.Discard()) // client-go would write into the view
	return &fleetview.Daemons{Config: config, Client: client, Namespace: cluster.Namespace(f.release), Timeout: f.timeout}, nil
}

// filter finds the pods of the selector.
func (f *fleetFlags) filter(ctx context.Context, d *fleetview.Daemons) (fleetview.Filter, error) {
	filter := fleetview.Filter{Namespace: f.namespace}
	if f.selector == "" {
		return filter, nil
	}
	pods, err := d.Client.CoreV1().Pods(f.namespace).List(ctx, metav1.ListOptions{LabelSelector: f.selector})
	if err != nil {
		return filter, fmt.Errorf("list the pods that match %q: %w", f.selector, err)
	}
	filter.Pods = make(map[fleetview.Pod]bool, len(pods.Items))
	for _, p := range pods.Items {
		filter.Pods[fleetview.Pod{Namespace: p.Namespace, Name: p.Name}] = true
	}
	return filter, nil
}

// once reads the fleet one time.
func (f *fleetFlags) once(ctx context.Context, d *fleetview.Daemons) (fleetview.Fleet, error) {
	targets, err := d.Targets(ctx, f.node)
	if err != nil {
		return fleetview.Fleet{}, err
	}
	filter, err := f.filter(ctx, d)
	if err != nil {
		return fleetview.Fleet{}, err
	}
	return filter.Apply(d.Once(ctx, targets)), nil
}

const shortestInterval = 500 * time.Millisecond

func (a *app) topCommand() *cobra.Command {
	var f fleetFlags
	var once bool
	o := top.Options{UTF8: screen.UTF8(os.Getenv)}
	c := &cobra.Command{
		Use:   "top",
		Short: "Show the GPUs and tenants of all nodes live",
		Long: `Show the GPUs of all nodes and the programs on them, and update them every
second, or with more than 250 nodes every 10 seconds. Nodes that do not answer
share a line with the reason, and so do idle GPUs. The view has the columns and
keys of ` + "`xsched top`" + `; it only shows.

The node plugins are asked through the API server: nodes open no port. This needs
the role xsched-viewer in the namespace of XSched, which only allows viewing.
--once prints all tenants and ends. --json prints one JSON object per interval
and line, or with --once a single one.`,
		Example: `  kubectl xsched top
  kubectl xsched top --node gpu-7
  kubectl xsched top -n research -l app=training --once`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Interval < shortestInterval {
				return fmt.Errorf("--interval %s is too short; use %s or more", o.Interval, shortestInterval)
			}
			if !slices.Contains(top.SortNames(), o.Sort) {
				return fmt.Errorf("--sort %q is unknown; use %s", o.Sort, strings.Join(top.SortNames(), ", "))
			}
			d, err := f.daemons()
			if err != nil {
				return err
			}
			if once {
				fleet, err := f.once(cmd.Context(), d)
				if err != nil {
					return err
				}
				return a.printFleet(cmd.Context(), &fleet, o, f.asJSON)
			}
			return a.watchFleet(cmd.Context(), d, &f, o)
		},
	}
	c.Flags().BoolVar(&once, "once", false, "print one screen with all tenants")
	c.Flags().StringVar(&o.Sort, "sort", top.SortNames()[0], "sort order: "+strings.Join(top.SortNames(), ", "))
	c.Flags().StringVar(&o.Filter, "filter", "", "show only tenants whose node, pod, PID, state or command contains `TEXT`")
	c.Flags().DurationVar(&o.Interval, "interval", time.Second, "update every `T`")
	f.tenants(c)
	return c
}

// printFleet prints all tenants once. Nodes that do not answer are an error.
func (a *app) printFleet(ctx context.Context, fleet *fleetview.Fleet, o top.Options, asJSON bool) error {
	if asJSON {
		if err := a.printJSON(fleet); err != nil {
			return err
		}
	} else {
		model := top.New(ctx, nil, o)
		model.Take(fleet.Merged(), nil)
		w := colorprofile.NewWriter(a.stdout, os.Environ())
		if _, err := io.WriteString(w, screen.Styled(model.Lines(a.width(), 0))+"\n"); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	return unanswered(fleet)
}

// unanswered is the error of nodes without an answer.
func unanswered(fleet *fleetview.Fleet) error {
	switch lost := fleet.Errors(); len(lost) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("node %s does not answer: %s", lost[0].Name, lost[0].Error)
	default:
		return fmt.Errorf("%d of %d nodes do not answer; see the lines above", len(lost), len(fleet.Nodes))
	}
}

func (a *app) watchFleet(ctx context.Context, d *fleetview.Daemons, f *fleetFlags, o top.Options) error {
	interactive := !f.asJSON && os.Getenv("TERM") != "dumb"
	if interactive && (!term.IsTerminal(int(os.Stdin.Fd())) || !term.IsTerminal(int(os.Stdout.Fd()))) {
		return errors.New("top needs a terminal as standard input and output; use --once or --json")
	}
	if _, err := d.Targets(ctx, f.node); err != nil {
		return err // better than a screen without a cluster
	}
	ctx, stop := context.WithCancel(ctx)
	watch := &fleetview.Watch{Daemons: d, Node: f.node, Interval: o.Interval, Filter: func(ctx context.Context) (fleetview.Filter, error) { return f.filter(ctx, d) }}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		watch.Run(ctx)
	}()
	defer func() { stop(); <-ended }()
	if interactive {
		return top.Run(ctx, watch, o, os.Stdin, os.Stdout, os.Environ())
	}
	return a.follow(ctx, watch, o, f.asJSON)
}

// follow prints one JSON object or one screen per interval.
func (a *app) follow(ctx context.Context, watch *fleetview.Watch, o top.Options, asJSON bool) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	model := top.New(ctx, watch, o)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(o.Interval):
		}
		fleet, err := watch.Fleet()
		if err != nil {
			return err
		}
		if asJSON {
			err = json.NewEncoder(a.stdout).Encode(fleet)
		} else {
			model.Take(fleet.Merged(), nil)
			_, err = io.WriteString(a.stdout, screen.Styled(model.Lines(a.width(), 0))+"\n")
		}
		if err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
}

func (a *app) printJSON(value any) error {
	encoder := json.NewEncoder(a.stdout)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return nil
}

// width is the width of the terminal, or 0 if standard output is not one.
func (a *app) width() int {
	if file, ok := a.stdout.(*os.File); ok {
		if width, _, err := term.GetSize(int(file.Fd())); err == nil {
			return width
		}
	}
	return 0
}
