// Sarama as people use it: an idempotent writer, or a member of a group, until the pipe is closed.
//
//	program writer|reader BOOTSTRAP TOPIC GROUP
//
// A writer prints `acked VALUE` for each record that was acknowledged, a reader `got PARTITION OFFSET VALUE` for each
// that it has handled, and commits it after that. Nothing is added to what Sarama does by itself.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

var out = struct {
	sync.Mutex
	*bufio.Writer
}{Writer: bufio.NewWriter(os.Stdout)}

func say(format string, values ...any) {
	out.Lock()
	defer out.Unlock()
	fmt.Fprintf(out.Writer, format+"\n", values...)
	out.Flush()
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	role, brokers, topic, group := os.Args[1], strings.Split(os.Args[2], ","), os.Args[3], os.Args[4]
	over, end := context.WithCancel(context.Background())
	go func() { // whoever started us closes our input when it is over
		io.Copy(io.Discard, os.Stdin)
		end()
	}()
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.ClientID = "sarama-" + role
	if role == "writer" {
		write(over, brokers, topic, config)
	} else {
		read(over, brokers, topic, group, config)
	}
}

func write(over context.Context, brokers []string, topic string, config *sarama.Config) {
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Retry.Max = 1000
	config.Producer.Retry.Backoff = 200 * time.Millisecond
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewAsyncProducer(brokers, config)
	check(err)
	var answered sync.WaitGroup
	go func() {
		for message := range producer.Successes() {
			say("acked %s", message.Value)
			answered.Done()
		}
	}()
	go func() {
		for failed := range producer.Errors() {
			check(failed)
		}
	}()
	for number := 0; over.Err() == nil; number++ {
		key, value := fmt.Sprintf("key-%d", number%20), fmt.Sprintf("%d", number)
		answered.Add(1)
		producer.Input() <- &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder(key), Value: sarama.StringEncoder(value),
		}
		time.Sleep(5 * time.Millisecond)
	}
	answered.Wait()
	check(producer.Close())
	say("done")
}

type handler struct{}

func (handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			say("got %d %d %s", message.Partition, message.Offset, message.Value)
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

func read(over context.Context, brokers []string, topic, group string, config *sarama.Config) {
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 200 * time.Millisecond
	config.Consumer.Return.Errors = true
	members, err := sarama.NewConsumerGroup(brokers, group, config)
	check(err)
	go func() {
		for err := range members.Errors() {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	for over.Err() == nil {
		err := members.Consume(over, []string{topic}, handler{})
		if err != nil && !errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, err)
			time.Sleep(200 * time.Millisecond)
		}
	}
	check(members.Close())
	say("done")
}
